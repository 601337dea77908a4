# SPDX-License-Identifier: MIT OR Apache-2.0
# GPU policies, compiled, and the programs that load and try them.
{
  lib,
  rustPlatform,
  elfutils,
  libbpf,
  linuxHeaders,
  llvmPackages,
  makeWrapper,
  pkg-config,
  zlib,
}:

let
  root = ../..;
in
rustPlatform.buildRustPackage {
  pname = "sluice-bpf";
  version = (lib.importTOML (root + "/bpf/Cargo.toml")).package.version;

  src = lib.fileset.toSource {
    inherit root;
    fileset = lib.fileset.unions [
      (root + "/Cargo.toml")
      (root + "/Cargo.lock")
      # The loader's workspace; the library itself is not built.
      (root + "/src")
      (root + "/bpf")
      (root + "/nixos-module/units")
    ];
  };
  cargoLock.lockFile = root + "/Cargo.lock";
  strictDeps = true;

  # The wrapped compiler adds flags that the BPF target refuses.
  nativeBuildInputs = [
    llvmPackages.clang-unwrapped
    makeWrapper
    pkg-config
  ];
  buildInputs = [
    elfutils
    zlib
  ];

  postPatch = ''
    substituteInPlace bpf/loader/args.rs \
      --replace-fail /usr/lib/sluice $out/lib/sluice \
      --replace-fail /usr/share/sluice $out/share/sluice
  '';

  cargoBuildFlags = [
    "--package"
    "sluice-policy"
  ];
  # Needs root and the module; the scenarios in virtual machines test it.
  doCheck = false;

  env.BPF_FLAGS = toString [
    "-target bpf"
    "-mcpu=v3"
    "-g"
    "-O2"
    "-Wall"
    "-Wextra"
    "-Wno-unused-parameter"
    "-Werror"
    "-I${lib.getDev libbpf}/include"
    "-I${linuxHeaders}/include"
  ];

  postInstall = ''
    for kind in policies probes; do
      mkdir -p $out/lib/sluice/$kind
      for source in bpf/$kind/*.bpf.c; do
        clang $BPF_FLAGS -c $source -o $out/lib/sluice/$kind/$(basename $source .c).o
      done
    done
    install -Dm644 -t $out/share/sluice/bpf bpf/intf.h
    install -Dm644 -t $out/share/sluice/bpf/lib bpf/lib/*.h
    install -Dm644 -t $out/lib/systemd/system nixos-module/units/sluice-policy.service
    substituteInPlace $out/lib/systemd/system/sluice-policy.service \
      --replace-fail /usr/bin/ $out/bin/
    # For `sluice policy build`, which runs the clang that is in the path.
    wrapProgram $out/bin/sluice-policy \
      --suffix C_INCLUDE_PATH : ${lib.getDev libbpf}/include:${linuxHeaders}/include
  '';

  meta = {
    description = "GPU policies in BPF for Sluice, and their loader";
    license = lib.licenses.gpl2Only;
    mainProgram = "sluice-policy";
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
