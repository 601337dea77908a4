# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.swap.size = "8G"
{
  services.sluice.enable = true;
  services.sluice.tier.kind = "ram";
}
