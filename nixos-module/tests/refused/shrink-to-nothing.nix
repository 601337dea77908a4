# SPDX-License-Identifier: MIT OR Apache-2.0
# says: Set both, or leave both out
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.battery.onBattery = "shrink";
}
