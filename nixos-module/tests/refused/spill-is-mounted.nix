# SPDX-License-Identifier: MIT OR Apache-2.0
# says: remove the entry from fileSystems
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.path = "/dev/sda3";
  fileSystems."/data" = {
    device = "/dev/sda3";
    fsType = "ext4";
  };
}
