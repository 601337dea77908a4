# SPDX-License-Identifier: MIT OR Apache-2.0
# NVIDIA's open driver, patched to ask policies, in a release that the patches were checked
# with, which the newest are not.
{ config, ... }:
{
  services.xserver.videoDrivers = [ "nvidia" ];
  hardware.graphics.enable = true;
  hardware.nvidia.open = true;
  nixpkgs.config.allowUnfree = true;

  services.sluice = {
    kernel.enable = true;
    kernel.driver = {
      enable = true;
      package = config.boot.kernelPackages.nvidiaPackages.beta;
    };
    policies.prefetch = "prefetch_always_max";
    policies.eviction = "eviction_lfu";
  };
}
