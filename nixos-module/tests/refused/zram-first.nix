# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.swap.belowZram = true
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  zramSwap = {
    enable = true;
    priority = 1500;
  };
}
