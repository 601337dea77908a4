# SPDX-License-Identifier: MIT OR Apache-2.0
# Services that have a floor of GPU memory: each starts once the store has given it back.
# The unit that holds a floor is the package's; here is who waits for it.
{ config, lib, ... }:

let
  inherit (lib) literalExpression mkOption types;
  cfg = config.services.sluice;
  size = (import ./sizes.nix { inherit lib; }).type;
  names = lib.attrNames cfg.tenants;
  tenantName = "[a-z][a-z0-9-]{0,31}";
in
{
  options.services.sluice.tenants = mkOption {
    type = types.attrsOf (
      types.submodule {
        options = {
          unit = mkOption {
            type = types.strMatching "[A-Za-z0-9:_.\\@-]+\\.service" // {
              description = "name of a service";
            };
            example = "ollama.service";
            description = ''
              The service that uses the GPU. It starts once its floor is free, and does not start
              where that cannot be had.
            '';
          };
          memory.min = mkOption {
            type = size;
            example = "20G";
            description = ''
              Its floor: what the store leaves to it, of what it may hold itself, from before the
              service starts until it has stopped.
            '';
          };
          withinS = mkOption {
            type = types.ints.between 1 3600;
            default = 120;
            example = 30;
            description = "Seconds that the start may wait for the floor.";
          };
        };
      }
    );
    default = { };
    example = literalExpression ''
      {
        ollama = {
          unit = "ollama.service";
          memory.min = "20G";
        };
      }
    '';
    description = ''
      Services that have a floor of GPU memory, by a name of small letters, digits and -. Needs a
      spill, which takes the pages.
    '';
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = lib.all (name: builtins.match tenantName name != null) names;
        message = ''
          services.sluice.tenants: a name there is no tenant's name: ${lib.concatStringsSep ", " names}.
          Write 1 to 32 small letters, digits or -, with a letter first.
        '';
      }
      {
        assertion = names == [ ] || (cfg.settings.spill.path or null) != null;
        message = ''
          services.sluice.tenants: there is no spill that could take pages when ${lib.concatStringsSep ", " names}
          start. Set services.sluice.spill.path, or leave the tenants out.
        '';
      }
    ];

    systemd.services = lib.mapAttrs' (
      name: tenant:
      let
        reserve = "sluice-reserve@${name}.service";
      in
      # As `sluice tenant unit` prints it.
      lib.nameValuePair (lib.removeSuffix ".service" tenant.unit) {
        requires = [ reserve ];
        after = [ reserve ];
        unitConfig.Upholds = reserve;
      }
    ) cfg.tenants;
  };
}
