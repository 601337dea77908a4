# SPDX-License-Identifier: MIT OR Apache-2.0
# Sizes the way the configuration file spells them.
{ lib }:

let
  factors = {
    "" = 1;
    K = 1024;
    M = 1024 * 1024;
    G = 1024 * 1024 * 1024;
    T = 1024 * 1024 * 1024 * 1024;
  };
  parse = builtins.match "([0-9]+)([KMGT]?)(iB|B)?";
  # "5B" and "5KiB" are sizes, "5KB" and "5iB" are not.
  isSize =
    text:
    let
      parts = parse text;
      unit = builtins.elemAt parts 1;
      suffix = builtins.elemAt parts 2;
    in
    parts != null && (suffix == null || (suffix == "iB") == (unit != ""));
in
{
  type = lib.types.addCheck lib.types.str isSize // {
    name = "size";
    description = ''size: a whole number and K, M, G or T, all binary, e.g. "8G"'';
    descriptionClass = "noun";
  };

  # The bytes of a text that is a size; null for anything else, which
  # `sluice config check` refuses with a better message than ours.
  bytes =
    text:
    if builtins.isString text && isSize text then
      let
        parts = parse text;
      in
      lib.toIntBase10 (builtins.elemAt parts 0) * factors.${builtins.elemAt parts 1}
    else
      null;
}
