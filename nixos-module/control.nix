# SPDX-License-Identifier: MIT OR Apache-2.0
# The control plane: where the bus looks for its files (polkit looks into the system's
# packages), and who may switch.
# Its options are keys of the configuration file, in options.nix; its unit is the package's.
{ config, lib, ... }:

let
  cfg = config.services.sluice;
in
{
  config = lib.mkIf cfg.enable {
    services.dbus.packages = [ cfg.package ];
    security.polkit.enable = lib.mkDefault true;

    # Whom the package's rule for polkit lets switch.
    users.groups.sluice = { };
    # A new file is refused whole if anything in it is wrong; what was in force stays.
    systemd.services.sluiced.reloadTriggers = [
      config.environment.etc."sluice/sluice.toml".source
    ];
  };
}
