# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.spill.path, or leave durability out
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.settings.swap.durability = "mirror";
}
