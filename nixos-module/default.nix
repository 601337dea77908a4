# SPDX-License-Identifier: MIT OR Apache-2.0
{
  config,
  lib,
  pkgs,
  ...
}:

let
  cfg = config.services.sluice;
  format = pkgs.formats.toml { };
in
{
  options.services.sluice = {
    enable = lib.mkEnableOption "Sluice, a swap device in fast memory that nobody uses";

    package = lib.mkOption {
      type = lib.types.package;
      description = "The package with the programs and the unit. The flake's module sets it.";
    };

    settings = lib.mkOption {
      type = lib.types.submodule { freeformType = format.type; };
      default = { };
      example = lib.literalExpression ''
        {
          swap.size = "8G";
          tier = {
            kind = "ram";
            size = "2G";
          };
          spill.path = "/dev/disk/by-partlabel/sluice-spill";
        }
      '';
      description = ''
        The contents of {file}`/etc/sluice/sluice.toml`. The keys are described in
        docs/reference/configuration.md; {command}`sluice config check` says whether
        they are right. The store itself refuses a file that is not.
      '';
    };
  };

  config = lib.mkIf cfg.enable {
    assertions = [
      {
        assertion = cfg.settings ? swap.size;
        message = ''
          services.sluice.enable is set, and services.sluice.settings.swap.size is not.
          Say how much swap to offer, e.g. services.sluice.settings.swap.size = "8G".
        '';
      }
    ];

    environment.etc."sluice/sluice.toml".source = format.generate "sluice.toml" cfg.settings;
    environment.systemPackages = [ cfg.package ];

    # Loaded at boot, so that the store need not load it. max_part=0: a swap device
    # has no partitions, and looking for them would read it.
    boot.kernelModules = [ "nbd" ];
    boot.extraModprobeConfig = "options nbd max_part=0";

    systemd.packages = [ cfg.package ];
    systemd.services.sluice-store = {
      # NixOS takes no notice of the [Install] section of a packaged unit.
      wantedBy = [ "multi-user.target" ];
      # A restart would switch the swap off and bring every page back in the middle of
      # a switch; a new version or configuration takes over at the next start.
      restartIfChanged = false;
    };
  };
}
