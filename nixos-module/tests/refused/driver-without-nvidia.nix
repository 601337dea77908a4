# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.xserver.videoDrivers = [ "nvidia" ] (also on a machine
{ config, ... }:
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.kernel.enable = true;
  services.sluice.kernel.driver.enable = true;
  services.sluice.kernel.driver.package = config.boot.kernelPackages.nvidiaPackages.beta;
}
