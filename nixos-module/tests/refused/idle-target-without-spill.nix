# SPDX-License-Identifier: MIT OR Apache-2.0
# says: which without a spill is not possible
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.control.idleTarget = "1G";
}
