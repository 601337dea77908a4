# SPDX-License-Identifier: MIT OR Apache-2.0
# says: two would write to
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.path = "/dev/sda3";
  swapDevices = [ { device = "/dev/sda3"; } ];
}
