# SPDX-License-Identifier: MIT OR Apache-2.0
# says: Leave size out, or name a file
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill = {
    path = "/dev/sda3";
    size = "8G";
  };
}
