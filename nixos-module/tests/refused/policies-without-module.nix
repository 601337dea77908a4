# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.kernel.enable is not set
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.policies.eviction = "eviction_lfu";
}
