# SPDX-License-Identifier: MIT OR Apache-2.0
# says: the swap device /dev/sda2 has priority 50
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.swap.priority = 40;
  swapDevices = [
    {
      device = "/dev/sda2";
      priority = 50;
    }
  ];
}
