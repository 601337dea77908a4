# SPDX-License-Identifier: MIT OR Apache-2.0
# The kernel modules of the GPU policies, for one kernel:
#   kernelPackages.callPackage ./sluice-gpu-module.nix { }
{
  lib,
  stdenv,
  binutils,
  kernel,
  kernelModuleMakeFlags,
}:

let
  root = ../..;
  modules = "lib/modules/${kernel.modDirVersion}";
in
stdenv.mkDerivation {
  pname = "sluice-gpu-module";
  version = "${(lib.importTOML (root + "/Cargo.toml")).package.version}-${kernel.version}";

  src = lib.fileset.toSource {
    inherit root;
    fileset = lib.fileset.unions [
      (root + "/kernel-module")
      (root + "/bpf/intf.h")
    ];
  };
  strictDeps = true;
  __structuredAttrs = true;
  # `raw`: the modules as they were linked, uncompressed, for tests.
  outputs = [
    "out"
    "raw"
  ];

  hardeningDisable = [
    "format"
    "pic"
  ];
  nativeBuildInputs = kernel.moduleBuildDependencies;
  enableParallelBuilding = true;
  makeFlags = kernelModuleMakeFlags;

  # kbuild takes the types of the kernel from a vmlinux in its own folder, where
  # nixpkgs does not put it, and would leave the modules without types, which the
  # policies need.
  preBuild = ''
    cp -r ${kernel.dev}/${modules}/build headers
    chmod -R u+w headers
    ln -sf ${kernel.dev}/vmlinux headers/vmlinux
  '';
  buildPhase = ''
    runHook preBuild
    make -C headers KBUILD_OUTPUT=$PWD/headers M=$PWD/kernel-module \
      "''${makeFlags[@]}" -j$NIX_BUILD_CORES modules
    runHook postBuild
  '';
  installPhase = ''
    runHook preInstall
    make -C headers KBUILD_OUTPUT=$PWD/headers M=$PWD/kernel-module \
      "''${makeFlags[@]}" INSTALL_MOD_PATH=$out INSTALL_MOD_DIR=extra modules_install
    install -Dm644 -t $raw kernel-module/*.ko
    runHook postInstall
  '';

  doInstallCheck = true;
  nativeInstallCheckInputs = [ binutils ];
  installCheckPhase = ''
    runHook preInstallCheck
    for module in sluice_gpu sluice_sim; do
      readelf -S kernel-module/$module.ko | grep -q ' \.BTF ' || {
        echo "$module.ko has no type information; was pahole there, and vmlinux?" >&2
        exit 1
      }
      find $out/${modules} -name "$module.ko*" | grep -q .
    done
    runHook postInstallCheck
  '';

  meta = {
    description = "Hooks for GPU policies in BPF, and a simulated GPU to try them on";
    license = lib.licenses.gpl2Only;
    platforms = lib.platforms.linux;
    # BPF struct_ops of modules, with what the hooks use of them.
    broken = kernel.kernelOlder "6.12";
  };
}
