# SPDX-License-Identifier: MIT OR Apache-2.0
# says: nothing takes the rest
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.tier.size = "2G";
}
