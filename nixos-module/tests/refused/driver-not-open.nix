# SPDX-License-Identifier: MIT OR Apache-2.0
# says: Set hardware.nvidia.open = true
{ config, ... }:
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.xserver.videoDrivers = [ "nvidia" ];
  nixpkgs.config.allowUnfree = true;
  hardware.nvidia.open = false;
  services.sluice.kernel.enable = true;
  services.sluice.kernel.driver.enable = true;
  services.sluice.kernel.driver.package = config.boot.kernelPackages.nvidiaPackages.beta;
}
