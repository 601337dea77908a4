# SPDX-License-Identifier: MIT OR Apache-2.0
# says: below an hour
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.nbd.deadConnectionTimeoutS = 120;
}
