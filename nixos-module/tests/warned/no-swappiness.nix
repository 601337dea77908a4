# SPDX-License-Identifier: MIT OR Apache-2.0
# says: swaps only when it is nearly out of memory
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  boot.kernel.sysctl."vm.swappiness" = 0;
}
