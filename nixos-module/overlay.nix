# SPDX-License-Identifier: MIT OR Apache-2.0
# pkgs.sluice and pkgs.sluice-bpf, and the kernel module in each set of kernel packages.
final: prev: {
  sluice = final.callPackage ./packages/sluice.nix { };
  sluice-bpf = final.callPackage ./packages/sluice-bpf.nix { };
  kernelPackagesExtensions = prev.kernelPackagesExtensions ++ [
    (kernelFinal: _: {
      sluice-gpu-module = kernelFinal.callPackage ./packages/sluice-gpu-module.nix { };
    })
  ];
}
