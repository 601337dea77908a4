# SPDX-License-Identifier: MIT OR Apache-2.0
# says: (/run)
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.path = "/run/spill";
}
