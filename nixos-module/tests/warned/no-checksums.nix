# SPDX-License-Identifier: MIT OR Apache-2.0
# says: swap.checksums is false
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.swap.checksums = false;
}
