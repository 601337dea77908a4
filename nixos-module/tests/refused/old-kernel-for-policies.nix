# SPDX-License-Identifier: MIT OR Apache-2.0
# says: boot.kernelPackages = pkgs.linuxPackages_latest
{ kernelPackages, ... }:
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  boot.kernelPackages = kernelPackages "6.6.100";
  services.sluice.kernel.enable = true;
}
