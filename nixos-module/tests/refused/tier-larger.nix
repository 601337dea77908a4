# SPDX-License-Identifier: MIT OR Apache-2.0
# says: Lower the one or raise the other
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.tier.size = "9G";
  services.sluice.spill.path = "/dev/sda3";
}
