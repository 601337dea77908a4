# SPDX-License-Identifier: MIT OR Apache-2.0
# says: hold. Raise the one or lower the other
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill = {
    path = "/var/lib/sluice/spill";
    size = "4096MiB";
  };
}
