# SPDX-License-Identifier: MIT OR Apache-2.0
# says: boot.kernelPackages = pkgs.linuxPackages
{ kernelPackages, ... }:
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  boot.kernelPackages = kernelPackages "5.15.200";
}
