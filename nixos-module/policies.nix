# SPDX-License-Identifier: MIT OR Apache-2.0
# GPU policies in BPF: the kernel module that asks them, and the unit that loads those
# of the section [policies]. Apart from the store, which needs none of this.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  inherit (lib) literalExpression mkOption types;
  cfg = config.services.sluice;
  policyName = types.strMatching "[A-Za-z0-9_-]{1,28}" // {
    description = "name of a policy";
  };
  policy =
    example: description:
    mkOption {
      type = types.nullOr policyName;
      default = null;
      inherit example description;
    };

  # What is chosen for all, and in each scope.
  choice = {
    eviction = policy "eviction_lru_2q" "Which memory goes when some has to: an installed policy.";
    prefetch = policy "prefetch_adaptive_tree" ''
      What is brought in beside a faulted page: an installed policy. One that does both
      (`combined_*`) is named at both.
    '';
    scheduling = policy "timeslice_by_class" "Timeslices and admission: an installed policy.";
    budgetUs = mkOption {
      type = types.nullOr (types.ints.between 1 1000);
      default = null;
      example = 20;
      description = ''
        The longest that a call may take, in microseconds; 50 if not given. A policy that exceeds
        it is bypassed.
      '';
    };
    maxFaultsPercent = mkOption {
      type = types.nullOr (types.ints.between 101 100000);
      default = null;
      example = 200;
      description = ''
        What the GPU's faults may rise to after loading, in percent; 400 if not given. A memory
        policy under which they rise further is bypassed.
      '';
    };
  };
in
{
  options.services.sluice = {
    kernel = {
      enable = lib.mkEnableOption ''
        the kernel module `sluice_gpu`, which GPU policies attach to, and their loader. It is built
        for {option}`boot.kernelPackages`, of Linux 6.12 or newer. Swap needs it not, and it works
        without {option}`services.sluice.enable`. NVIDIA's driver asks the policies with
        {option}`services.sluice.kernel.driver.enable`; the simulated GPU `sluice_sim`, which comes
        with it, always does
      '';

      package = mkOption {
        type = types.package;
        default = config.boot.kernelPackages.callPackage ./packages/sluice-gpu-module.nix { };
        defaultText = literalExpression ''
          config.boot.kernelPackages.callPackage ./packages/sluice-gpu-module.nix { }
        '';
        example = literalExpression "config.boot.kernelPackages.sluice-gpu-module";
        description = "The package with the kernel module.";
      };
    };

    policyPackage = mkOption {
      type = types.package;
      default = pkgs.callPackage ./packages/sluice-bpf.nix { };
      defaultText = literalExpression "pkgs.callPackage ./packages/sluice-bpf.nix { }";
      example = literalExpression "pkgs.sluice-bpf";
      description = "The package with the GPU policies and their loader.";
    };

    policies = choice // {
      loaderExit = mkOption {
        type = types.enum [
          "keep"
          "detach"
        ];
        default = "keep";
        example = "detach";
        description = ''
          What becomes of the policies when the loader ends, in whatever way. `keep`: it ends once
          they are attached, and they stay until they are changed or the machine is switched off.
          `detach`: it stays, and they go with it.
        '';
      };
      parameters = mkOption {
        type = types.attrsOf (types.attrsOf types.ints.unsigned);
        default = { };
        example = {
          prefetch_stride.confidence = 3;
        };
        description = ''
          Tunables, for each policy by its name. They hold wherever the policy is loaded.
        '';
      };
      scope = mkOption {
        type = types.listOf (
          types.submodule {
            options = choice // {
              gpu = mkOption {
                type = types.nullOr (types.ints.between 0 1023);
                default = null;
                example = 0;
                description = "For this GPU only.";
              };
              cgroup = mkOption {
                type = types.nullOr (types.strMatching "/.*");
                default = null;
                example = "/machine.slice";
                description = ''
                  For this control group and all below it only. It must exist when the policies are
                  loaded.
                '';
              };
            };
          }
        );
        default = [ ];
        example = literalExpression ''
          [
            {
              cgroup = "/machine.slice";
              prefetch = "prefetch_tenant_tree";
            }
          ]
        '';
        description = ''
          Other policies for one GPU, for a control group, or both; 15 at most. The most specific
          one serves.
        '';
      };
    };
  };

  config = lib.mkIf cfg.kernel.enable {
    boot.extraModulePackages = [ cfg.kernel.package ];
    boot.kernelModules = [ "sluice_gpu" ];
    environment.systemPackages = [
      cfg.package
      cfg.policyPackage
    ];
    systemd.packages = [ cfg.policyPackage ];
    systemd.services.sluice-policy = {
      # NixOS takes no notice of the [Install] section of a packaged unit.
      wantedBy = [ "multi-user.target" ];
      # Without any policy too: what an earlier configuration attached is then detached.
      restartTriggers = [ config.environment.etc."sluice/sluice.toml".source ];
    };
  };
}
