# SPDX-License-Identifier: MIT OR Apache-2.0
# A package of NVIDIA's driver with its open kernel modules patched to ask GPU policies.
# All else of it, user space above all, is the same derivation.
{
  lib,
  coccinelle,
  python3,
  # As of kernelPackages.nvidiaPackages; it has its open modules as `open`.
  base,
}:

let
  root = ../..;
  rules = lib.fileset.toSource {
    inherit root;
    fileset = lib.fileset.unions [
      (root + "/kernel-module")
      (root + "/bpf/intf.h")
      (root + "/vm-tests/harness/__init__.py")
      (root + "/vm-tests/harness/errors.py")
    ];
  };
in
base
// {
  open = base.open.overrideAttrs (old: {
    nativeBuildInputs = (old.nativeBuildInputs or [ ]) ++ [
      coccinelle
      python3
    ];
    # Refuses a release that driver.lock does not know, and one that the rules do not fit.
    postPatch = (old.postPatch or "") + ''

      PYTHONDONTWRITEBYTECODE=1 python3 ${rules}/kernel-module/apply.py kernel-open ${base.version}
    '';
    postBuild = (old.postBuild or "") + ''

      if ! ''${NM:-nm} kernel-open/nvidia-uvm.ko | grep -q ' sluice_uvm_connect$'; then
        echo "nvidia-uvm.ko was built without the patches" >&2
        exit 1
      fi
    '';
  });
}
