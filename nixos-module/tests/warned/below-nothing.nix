# SPDX-License-Identifier: MIT OR Apache-2.0
# says: it changes nothing
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.swap.belowZram = true;
}
