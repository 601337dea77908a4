# SPDX-License-Identifier: MIT OR Apache-2.0
# says: Name the file to
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.size = "8G";
}
