# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.tier.kind = "vulkan"
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.vulkan.devices = [ "0" ];
}
