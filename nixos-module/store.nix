# SPDX-License-Identifier: MIT OR Apache-2.0
# The store: its file, its unit, what it waits for. The unit itself is the package's.
{
  config,
  lib,
  pkgs,
  utils,
  ...
}:

let
  cfg = config.services.sluice;
  rendered = (pkgs.formats.toml { }).generate "sluice.toml" cfg.settings;
  checked = pkgs.runCommandLocal "sluice.toml" { } ''
    ${lib.getExe cfg.package} config check ${rendered}
    cp ${rendered} $out
  '';
  # By the settings, which may say more than the options.
  spill = cfg.settings.spill.path or null;
  usesNvidia = (cfg.settings.tier.kind or "auto") != "ram" && config.hardware.nvidia.enabled;
  # The package's units, but for those of the policies.
  unitNames = map (lib.removeSuffix ".service") (
    lib.filter (name: lib.hasSuffix ".service" name && name != "sluice-policy.service") (
      lib.attrNames (builtins.readDir ./units)
    )
  );
  # The words after `KEY=` in a unit's file.
  installed =
    key: name:
    lib.concatMap
      (line: lib.filter (word: word != "") (lib.splitString " " (lib.removePrefix "${key}=" line)))
      (
        lib.filter (lib.hasPrefix "${key}=") (
          lib.splitString "\n" (builtins.readFile (./units + "/${name}.service"))
        )
      );
  isDevice = lib.hasPrefix "/dev/" spill;
in
{
  config = lib.mkMerge [
    (lib.mkIf (cfg.enable || cfg.kernel.enable) {
      # Without the store there is only the section of policies, which their loader checks
      # whole before it changes anything.
      environment.etc."sluice/sluice.toml".source =
        if cfg.enable && cfg.checkConfig then checked else rendered;
    })

    (lib.mkIf cfg.enable (
      lib.mkMerge [
        {
          environment.systemPackages = [ cfg.package ];

          # Loaded at boot, so that the store need not load it. max_part=0: a swap device
          # has no partitions, and looking for them would read it. CUDA cannot begin without
          # NVIDIA's other module, which nothing loads on a machine without a display.
          boot.kernelModules = [ "nbd" ] ++ lib.optional usesNvidia "nvidia-uvm";
          boot.extraModprobeConfig = "options nbd max_part=0";

          systemd.packages = [ cfg.package ];
          systemd.services = lib.genAttrs unitNames (name: {
            # NixOS takes no notice of the [Install] section of a packaged unit.
            wantedBy = installed "WantedBy" name;
            requiredBy = installed "RequiredBy" name;
            # A restart would switch the swap off and bring every page back in the middle of
            # a switch; a new version or configuration takes over at the next start. The
            # daemon that only decides holds no pages.
            restartIfChanged = name == "sluiced";
          });
        }

        (lib.mkIf (spill != null && isDevice) (
          let
            device = "${utils.escapeSystemdPath spill}.device";
          in
          {
            # Wanted, not required: a device that does not come is named by the store.
            systemd.services.sluice-store = {
              wants = [ device ];
              after = [ device ];
            };
          }
        ))

        (lib.mkIf (spill != null && !isDevice) {
          systemd.services.sluice-store.unitConfig.RequiresMountsFor = [ spill ];
        })

        (lib.mkIf (spill != null && cfg.spill.size != null) {
          systemd.services.sluice-spill = {
            description = "Sluice: make the spill file";
            documentation = [ "man:sluice-spill-create(1)" ];
            # Wanted, not required: stopping this must never stop the store.
            wantedBy = [ "sluice-store.service" ];
            before = [ "sluice-store.service" ];
            restartIfChanged = false;
            unitConfig = {
              ConditionPathExists = "!${spill}";
              RequiresMountsFor = [ spill ];
            };
            serviceConfig = {
              Type = "oneshot";
              ExecStartPre = "${lib.getExe' pkgs.coreutils "mkdir"} -p -m 0700 ${utils.escapeSystemdExecArg (dirOf spill)}";
              ExecStart = utils.escapeSystemdExecArgs [
                (lib.getExe cfg.package)
                "spill"
                "create"
                "--size"
                cfg.spill.size
                spill
              ];
              # As long as writing that much takes.
              TimeoutStartSec = "infinity";
              CapabilityBoundingSet = [ "" ];
              NoNewPrivileges = true;
              PrivateDevices = true;
              PrivateNetwork = true;
              PrivateTmp = true;
              ProtectClock = true;
              ProtectControlGroups = true;
              ProtectHome = true;
              ProtectHostname = true;
              ProtectKernelLogs = true;
              ProtectKernelModules = true;
              ProtectKernelTunables = true;
              ProtectProc = "invisible";
              LockPersonality = true;
              MemoryDenyWriteExecute = true;
              RestrictAddressFamilies = "none";
              RestrictNamespaces = true;
              RestrictRealtime = true;
              RestrictSUIDSGID = true;
              SystemCallArchitectures = "native";
              SystemCallFilter = [ "@system-service" ];
              SystemCallErrorNumber = "EPERM";
              UMask = "0077";
            };
          };
        })
      ]
    ))
  ];
}
