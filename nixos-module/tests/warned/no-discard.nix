# SPDX-License-Identifier: MIT OR Apache-2.0
# says: swap.discard is false
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.swap.discard = false;
}
