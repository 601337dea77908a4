# SPDX-License-Identifier: MIT OR Apache-2.0
# What `nix flake check` builds: one list. The virtual machines come from the same
# scenario files as those of `vm-tests/run`.
{ pkgs, packages }:

let
  inherit (pkgs) lib;
  root = ../.;
  nixFiles = lib.fileset.toSource {
    inherit root;
    fileset = lib.fileset.fileFilter (file: file.hasExt "nix") root;
  };
  # The package with another command in the place of its build.
  cargo =
    name: tools: command:
    packages.sluice.overrideAttrs (old: {
      pname = "sluice-${name}";
      nativeBuildInputs = old.nativeBuildInputs ++ tools ++ packages.sluice-bpf.nativeBuildInputs;
      buildInputs = (old.buildInputs or [ ]) ++ packages.sluice-bpf.buildInputs;
      src = lib.fileset.toSource {
        inherit root;
        fileset = lib.fileset.unions [
          (root + "/Cargo.toml")
          (root + "/Cargo.lock")
          (root + "/src")
          (root + "/bpf")
          (root + "/.ci")
        ];
      };
      buildPhase = command;
      installPhase = "touch $out";
      postInstall = "";
      dontFixup = true;
    });
  system =
    module:
    import (pkgs.path + "/nixos/lib/eval-config.nix") {
      inherit (pkgs.stdenv.hostPlatform) system;
      modules = [
        ./.
        module
        {
          boot.loader.grub.enable = false;
          fileSystems."/" = {
            device = "/dev/disk/by-label/root";
            fsType = "ext4";
          };
          nixpkgs.config.allowUnfree = true;
          system.stateVersion = lib.trivial.release;
        }
      ];
    };
  # The file that the store reads, as checked by the store's own program. Not the whole
  # machine: the driver of an NVIDIA GPU is not free, and not ours to build.
  # The example without swap has the list of its modules.
  file =
    module:
    let
      inherit ((system module).config.environment) etc;
    in
    (etc."sluice/sluice.toml" or etc."modules-load.d/nixos.conf").source;
  examples = lib.mapAttrs' (
    name: _:
    let
      short = lib.removeSuffix ".nix" name;
    in
    lib.nameValuePair "example-${short}" (file (./tests/examples + "/${name}"))
  ) (builtins.readDir ./tests/examples);
in
{
  package = packages.sluice;
  inherit (packages) sluice-bpf;
  gpu-module = pkgs.linuxPackages.callPackage ./packages/sluice-gpu-module.nix { };

  clippy = cargo "clippy" [ pkgs.clippy ] ''
    cargo clippy --offline --workspace --all-targets -- -D warnings
  '';
  fmt = cargo "fmt" [ pkgs.rustfmt ] ''
    cargo fmt --all -- --config-path .ci/rustfmt.toml --check
  '';
  nix-files =
    pkgs.runCommandLocal "sluice-nix-files"
      {
        nativeBuildInputs = [
          pkgs.deadnix
          pkgs.nixfmt
        ];
      }
      ''
        find ${nixFiles} -name '*.nix' -exec nixfmt --check {} +
        deadnix --fail ${nixFiles}
        touch $out
      '';
  option-docs =
    (pkgs.nixosOptionsDoc {
      options.services.sluice =
        (lib.evalModules {
          modules = [
            ./options.nix
            ./policies.nix
            ./driver.nix
            ./desktop.nix
            {
              _module.check = false;
              _module.args = {
                inherit pkgs;
              };
            }
          ];
        }).options.services.sluice;
    }).optionsCommonMark;
}
// examples
// import ../vm-tests { inherit pkgs packages; }
