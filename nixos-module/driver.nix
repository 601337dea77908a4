# SPDX-License-Identifier: MIT OR Apache-2.0
# What NVIDIA's driver makes of the GPU policies: the patched one asks them; of the stock
# one a parameter may do the same, by the table that `sluice policy show` reads too.
{
  config,
  lib,
  pkgs,
  ...
}:

let
  inherit (lib) literalExpression mkOption types;
  cfg = config.services.sluice;
  inherit (cfg.kernel) driver;

  # By the settings, which may say more than the options.
  policies = cfg.settings.policies or { };
  chosen = policies.prefetch or null;
  stock = lib.importTOML ../src/driver/stock.toml;
  means = if chosen == null then null else stock.${chosen} or null;
  value = policies.parameters.${chosen}.${means.tunable or ""} or means.value;
  # What the driver does not take it would replace by its own default.
  isTaken = means != null && value >= means.least && value <= means.most;
in
{
  options.services.sluice.kernel.driver = {
    enable = lib.mkEnableOption ''
      NVIDIA's open kernel modules with the semantic patches, so that `nvidia-uvm` asks the GPU
      policies. The modules of {option}`services.sluice.kernel.driver.package` are built anew and
      become those of {option}`hardware.nvidia.package`; the driver's libraries stay the same
      packages. It takes a reboot to have them loaded, and one to go back. Not tried on a GPU.
      Without it the driver is left alone: if a parameter of the stock `nvidia-uvm` does what the
      prefetch policy for all does, or nearly, it is set for the next loading, and `sluice policy
      show` tells by which means each policy is in force
    '';

    package = mkOption {
      type = types.package;
      default = config.boot.kernelPackages.nvidiaPackages.stable;
      defaultText = literalExpression "config.boot.kernelPackages.nvidiaPackages.stable";
      example = literalExpression "config.boot.kernelPackages.nvidiaPackages.legacy_535";
      description = ''
        The driver whose open kernel modules are patched, in place of
        {option}`hardware.nvidia.package`, which must not be set then. Its release must be one of
        those that the patches were checked with (`kernel-module/driver.lock`).
      '';
    };
  };

  config = lib.mkIf cfg.kernel.enable (
    lib.mkMerge [
      (lib.mkIf driver.enable {
        hardware.nvidia.package = import ./packages/nvidia-driver.nix {
          inherit (pkgs) lib coccinelle python3;
          base = driver.package;
        };
        # It looks for sluice_gpu once, when it is loaded, and does not depend on it.
        boot.extraModprobeConfig = "softdep nvidia-uvm pre: sluice_gpu";
      })

      (lib.mkIf (config.hardware.nvidia.enabled && !driver.enable && isTaken) {
        boot.extraModprobeConfig = "options nvidia-uvm ${means.parameter}=${toString value}";
      })
    ]
  );
}
