# SPDX-License-Identifier: MIT OR Apache-2.0
# says: is on zfs
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.path = "/tank/spill";
  fileSystems."/tank" = {
    device = "tank";
    fsType = "zfs";
  };
}
