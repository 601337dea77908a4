# SPDX-License-Identifier: MIT OR Apache-2.0
# Inputs and outputs only: the package is nixos-module/package.nix, the module
# nixos-module/default.nix.
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
      packageOf = pkgs: self.packages.${pkgs.stdenv.hostPlatform.system}.sluice;
      app = description: program: {
        type = "app";
        program = toString program;
        meta = { inherit description; };
      };
    in
    {
      packages = forEach (pkgs: rec {
        sluice = pkgs.callPackage ./nixos-module/package.nix { };
        default = sluice;
      });

      apps = forEach (pkgs: {
        default = app "The sluice command" (lib.getExe (packageOf pkgs));
        # Without a kernel: the virtual machine of `make demo` is a Debian image.
        demo = app "A store at work, without privileges" (
          pkgs.writeShellScript "sluice-demo" ''exec ${lib.getExe (packageOf pkgs)} demo "$@"''
        );
      });

      nixosModules.default =
        { pkgs, ... }:
        {
          imports = [ ./nixos-module ];
          services.sluice.package = lib.mkDefault (packageOf pkgs);
        };

      devShells = forEach (pkgs: {
        default = pkgs.mkShell {
          inputsFrom = [ (packageOf pkgs) ];
          packages = with pkgs; [
            cargo-deny
            cargo-nextest
            clippy
            rustfmt
            # What the tests of the NBD server talk to it with.
            fio
            libnbd
            nbd
            nbdkit
            qemu-utils
          ];
        };
      });

      checks = forEach (pkgs: {
        package = packageOf pkgs;
      });

      formatter = forEach (pkgs: pkgs.nixfmt-tree);
    };
}
