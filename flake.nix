# SPDX-License-Identifier: MIT OR Apache-2.0
# Inputs and outputs only; what they are is below nixos-module/ and vm-tests/.
{
  description = "Sluice: fast swap in idle GPU memory";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs =
    { self, nixpkgs }:
    let
      inherit (nixpkgs) lib;
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEach = make: lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      packagesOf = pkgs: self.packages.${pkgs.stdenv.hostPlatform.system};
      app = description: program: {
        type = "app";
        program = toString program;
        meta = { inherit description; };
      };
    in
    {
      packages = forEach (pkgs: rec {
        sluice = pkgs.callPackage ./nixos-module/packages/sluice.nix { };
        sluice-bpf = pkgs.callPackage ./nixos-module/packages/sluice-bpf.nix { };
        # For nixpkgs' default kernel; lib.gpuModuleFor makes it for another.
        sluice-gpu-module = self.lib.gpuModuleFor pkgs.linuxPackages;
        default = sluice;
      });

      # The kernel modules of GPU policies for some kernelPackages.
      lib.gpuModuleFor =
        kernelPackages: kernelPackages.callPackage ./nixos-module/packages/sluice-gpu-module.nix { };

      # NVIDIA's driver, patched to ask GPU policies, of a package of some kernelPackages:
      #   patchedDriverFor pkgs kernelPackages.nvidiaPackages.stable
      lib.patchedDriverFor =
        pkgs: base:
        import ./nixos-module/packages/nvidia-driver.nix {
          inherit (pkgs) lib coccinelle python3;
          inherit base;
        };

      overlays.default = import ./nixos-module/overlay.nix;

      nixosModules.sluice = ./nixos-module;
      nixosModules.default = self.nixosModules.sluice;

      apps = forEach (pkgs: {
        default = app "The sluice command" (lib.getExe (packagesOf pkgs).sluice);
        # Without a kernel: the virtual machine of `make demo` is a Debian image.
        demo = app "A store at work, without privileges" (
          pkgs.writeShellScript "sluice-demo" ''exec ${lib.getExe (packagesOf pkgs).sluice} demo "$@"''
        );
      });

      devShells = forEach (pkgs: {
        default = pkgs.callPackage ./nixos-module/shell.nix { packages = packagesOf pkgs; };
      });

      checks = forEach (
        pkgs:
        import ./nixos-module/checks.nix {
          inherit pkgs;
          packages = packagesOf pkgs;
        }
      );

      formatter = forEach (pkgs: pkgs.nixfmt-tree);
    };
}
