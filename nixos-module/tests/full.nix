# SPDX-License-Identifier: MIT OR Apache-2.0
# What evaluate.nix shows, on a whole NixOS from a checkout of nixpkgs, and the outputs of
# the flake. Nothing is built.
{
  nixpkgs,
  system ? "x86_64-linux",
}:

let
  pkgs = import nixpkgs {
    inherit system;
    # The driver of an NVIDIA GPU, which the examples ask for, is not free.
    config.allowUnfree = true;
  };
  inherit (pkgs) lib;
  root = ../..;
  # What NixOS wants to know of any machine, and nothing of ours.
  machine = {
    boot.loader.grub.enable = false;
    fileSystems."/" = {
      device = lib.mkDefault "/dev/disk/by-label/root";
      fsType = lib.mkDefault "ext4";
    };
    nixpkgs.hostPlatform = system;
    system.stateVersion = lib.trivial.release;
    # The kernel of that series; the examples of evaluate.nix have the version alone.
    _module.args.kernelPackages =
      version:
      pkgs.linuxKernel.packages."linux_${
        lib.replaceStrings [ "." ] [ "_" ] (lib.versions.majorMinor version)
      }";
  };
  evaluate =
    module:
    import (nixpkgs + "/nixos/lib/eval-config.nix") {
      system = null;
      modules = [
        machine
        (root + "/nixos-module")
        module
      ];
    };
  cases =
    kind: make:
    lib.mapAttrs' (
      name: _:
      lib.nameValuePair (lib.removeSuffix ".nix" name) (make (evaluate (./. + "/${kind}/${name}")))
    ) (builtins.readDir (./. + "/${kind}"));
  # Words of the lines for modprobe that are ours.
  ourModprobe = [
    "nbd"
    "sluice_gpu"
    "uvm_perf_prefetch"
  ];
  ours = lib.filterAttrs (name: _: lib.hasPrefix "sluice" name);

  # Its own nixpkgs is replaced by the checkout, as by --override-input.
  flake = import (root + "/flake.nix");
  outputs = flake.outputs {
    self = outputs;
    nixpkgs = {
      inherit lib;
      legacyPackages = lib.genAttrs [ "x86_64-linux" "aarch64-linux" ] (
        system: import nixpkgs { inherit system; }
      );
    };
  };
  derivations = lib.mapAttrs (_: lib.mapAttrs (_: item: item.drvPath));
in
{
  version = lib.trivial.version or lib.version;

  examples = cases "examples" (
    { config, ... }:
    {
      failed = map (item: item.message) (lib.filter (item: !item.assertion) config.assertions);
      warnings = lib.filter (lib.hasInfix "services.sluice") config.warnings;
      inherit (config.services.sluice) settings;
      etc = lib.mapAttrs (_: entry: "-> ${entry.source}") (
        lib.filterAttrs (name: _: lib.hasInfix "sluice" name) config.environment.etc
      );
      units = lib.mapAttrs (_: unit: {
        inherit (unit) text wantedBy requiredBy;
      }) (ours config.systemd.units);
      # NixOS's own modules are there too.
      modules = lib.filter (name: lib.elem name config.boot.kernelModules) [
        "nbd"
        "nvidia-uvm"
        "sluice_gpu"
      ];
      modprobe = lib.concatStringsSep "\n" (
        lib.filter (line: lib.any (word: lib.hasInfix word line) ourModprobe) (
          lib.splitString "\n" config.boot.extraModprobeConfig
        )
      );
      toplevel = config.system.build.toplevel.drvPath;
    }
  );

  refused = cases "refused" (
    { config, ... }:
    {
      failed = lib.filter (lib.hasInfix "services.sluice") (
        map (item: item.message) (lib.filter (item: !item.assertion) config.assertions)
      );
    }
  );

  # A second entry of the boot menu, without the service.
  specialisation =
    let
      inherit
        (evaluate {
          imports = [ ./examples/no-gpu.nix ];
          specialisation.training.configuration.services.sluice.enable = lib.mkForce false;
        })
        config
        ;
      has = config: config.systemd.services.sluice-store.wantedBy or [ ];
    in
    {
      usual = has config;
      training = has config.specialisation.training.configuration;
      toplevel = config.system.build.toplevel.drvPath;
    };

  flake = {
    packages = derivations outputs.packages;
    devShells = derivations outputs.devShells;
    formatter = lib.mapAttrs (_: item: item.drvPath) outputs.formatter;
    apps = lib.mapAttrs (_: lib.mapAttrs (_: item: item.program)) outputs.apps;
    checkNames = lib.attrNames outputs.checks.${system};
    checks = lib.mapAttrs (_: item: item.drvPath) outputs.checks.${system};
    driver =
      let
        base = pkgs.linuxPackages.nvidiaPackages.beta;
        patched = outputs.lib.patchedDriverFor pkgs base;
      in
      {
        userSpace = [
          base.drvPath
          patched.drvPath
        ];
        modules = [
          base.open.drvPath
          patched.open.drvPath
        ];
      };
    overlay =
      let
        overlaid = pkgs.extend outputs.overlays.default;
      in
      [
        overlaid.sluice.drvPath
        overlaid.sluice-bpf.drvPath
        overlaid.linuxPackages.sluice-gpu-module.drvPath
        overlaid.linuxPackages_latest.sluice-gpu-module.drvPath
      ];
  };
}
