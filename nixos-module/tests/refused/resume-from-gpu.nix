# SPDX-License-Identifier: MIT OR Apache-2.0
# says: boot.resumeDevice is /dev/nbd0
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  boot.resumeDevice = "/dev/nbd0";
}
