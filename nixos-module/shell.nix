# SPDX-License-Identifier: MIT OR Apache-2.0
# What building, testing and measuring need. The scenarios in Debian machines need
# Debian's own tools and are not run from here: `nix flake check` has them.
{
  packages,
  mkShell,
  bpftools,
  cargo-deny,
  cargo-nextest,
  clippy,
  coccinelle,
  deadnix,
  fio,
  libnbd,
  nbd,
  nbdkit,
  nixfmt,
  pahole,
  python3,
  qemu,
  rustfmt,
  shellcheck,
}:

mkShell {
  inputsFrom = [
    packages.sluice
    packages.sluice-bpf
  ];
  packages = [
    bpftools
    cargo-deny
    cargo-nextest
    clippy
    # The semantic patches of NVIDIA's driver.
    coccinelle
    deadnix
    nixfmt
    pahole
    rustfmt
    shellcheck
    # What the tests of the NBD server talk to it with.
    fio
    libnbd
    nbd
    nbdkit
    (python3.withPackages (python: [ python.libnbd ]))
    qemu
  ];
}
