# SPDX-License-Identifier: MIT OR Apache-2.0
{ lib, rustPlatform }:

let
  root = ../.;
in
rustPlatform.buildRustPackage {
  pname = "sluice";
  version = (lib.importTOML (root + "/Cargo.toml")).package.version;

  src = lib.fileset.toSource {
    inherit root;
    fileset = lib.fileset.unions [
      (root + "/Cargo.toml")
      (root + "/Cargo.lock")
      (root + "/src")
      ./units
    ];
  };
  cargoLock.lockFile = root + "/Cargo.lock";
  strictDeps = true;

  # The tests look at the whole tree, at the peers' programs and at the kernel's
  # limits; `cargo nextest run` in the development shell runs them.
  doCheck = false;

  # The program writes its own pages and completions, so it must run where it is built.
  postInstall = ''
    install -Dm644 -t $out/lib/systemd/system nixos-module/units/sluice-store.service
    substituteInPlace $out/lib/systemd/system/sluice-store.service \
      --replace-fail /usr/bin/ $out/bin/
    mkdir -p $out/share/man/man1 $out/share/bash-completion/completions \
      $out/share/zsh/site-functions $out/share/fish/vendor_completions.d
    $out/bin/sluice man --dir $out/share/man/man1
    $out/bin/sluice completions bash > $out/share/bash-completion/completions/sluice
    $out/bin/sluice completions zsh > $out/share/zsh/site-functions/_sluice
    $out/bin/sluice completions fish > $out/share/fish/vendor_completions.d/sluice.fish
  '';

  meta = {
    description = "Fast swap in idle GPU memory";
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "sluice";
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
