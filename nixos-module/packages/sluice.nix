# SPDX-License-Identifier: MIT OR Apache-2.0
# The programs but those of policies, their units, manual pages and completions.
{
  lib,
  rustPlatform,
  coreutils,
}:

let
  root = ../..;
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
      # Not built here, but cargo wants to see each member of the workspace.
      (root + "/bpf")
      (root + "/nixos-module/units")
      (root + "/nixos-module/dbus")
      (root + "/nixos-module/polkit")
      (root + "/nixos-module/desktop")
    ];
  };
  cargoLock.lockFile = root + "/Cargo.lock";
  strictDeps = true;

  # The tests look at the whole tree, at the peers' programs and at the kernel's
  # limits; `cargo nextest run` in the development shell runs them.
  doCheck = false;

  # The program writes its own pages and completions, so it must run where it is built.
  # NixOS's systemd finds no program by name alone but its own; `kill` is not of these.
  postInstall = ''
    install -Dm644 -t $out/lib/systemd/system nixos-module/units/*.service
    # With its loader, in sluice-bpf.
    rm $out/lib/systemd/system/sluice-policy.service
    # What a store hands over to is the program of the system that runs then.
    substituteInPlace $out/lib/systemd/system/*.service \
      --replace-quiet "--executable /usr/bin/" "--executable /run/current-system/sw/bin/" \
      --replace-quiet /usr/bin/ $out/bin/ \
      --replace-quiet ExecReload=kill ExecReload=${lib.getExe' coreutils "kill"}
    install -Dm644 -t $out/share/dbus-1/system.d nixos-module/dbus/org.sluice.Sluice1.conf
    install -Dm644 -t $out/share/dbus-1/system-services nixos-module/dbus/org.sluice.Sluice1.service
    install -Dm644 -t $out/share/dbus-1/interfaces nixos-module/dbus/org.sluice.Sluice1.xml
    install -Dm644 -t $out/share/polkit-1/actions nixos-module/polkit/org.sluice.policy
    install -Dm644 -t $out/share/polkit-1/rules.d nixos-module/polkit/50-sluice.rules
    install -Dm644 -t $out/share/applications nixos-module/desktop/sluice-tray.desktop
    install -Dm644 -t $out/share/icons/hicolor/scalable/status nixos-module/desktop/icons/*.svg
    mkdir -p $out/share/man/man1 $out/share/bash-completion/completions \
      $out/share/zsh/site-functions $out/share/fish/vendor_completions.d
    $out/bin/sluice man --dir $out/share/man/man1
    $out/bin/sluice completions bash > $out/share/bash-completion/completions/sluice
    $out/bin/sluice completions bash --program sluice-tray > $out/share/bash-completion/completions/sluice-tray
    $out/bin/sluice completions zsh > $out/share/zsh/site-functions/_sluice
    $out/bin/sluice completions zsh --program sluice-tray > $out/share/zsh/site-functions/_sluice-tray
    $out/bin/sluice completions fish > $out/share/fish/vendor_completions.d/sluice.fish
    $out/bin/sluice completions fish --program sluice-tray > $out/share/fish/vendor_completions.d/sluice-tray.fish
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
