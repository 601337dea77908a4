# SPDX-License-Identifier: MIT OR Apache-2.0
# says: leave minSize out, or the spill
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.swap.minSize = "1G";
  services.sluice.spill.path = "/dev/sda3";
}
