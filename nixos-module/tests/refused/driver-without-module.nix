# SPDX-License-Identifier: MIT OR Apache-2.0
# says: the patched driver would find no module to ask
{ config, ... }:
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.xserver.videoDrivers = [ "nvidia" ];
  nixpkgs.config.allowUnfree = true;
  hardware.nvidia.open = true;
  services.sluice.kernel.driver.enable = true;
  services.sluice.kernel.driver.package = config.boot.kernelPackages.nvidiaPackages.beta;
}
