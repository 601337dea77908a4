# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.nbd.index
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  swapDevices = [ { device = "/dev/nbd0"; } ];
}
