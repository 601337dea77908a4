# SPDX-License-Identifier: MIT OR Apache-2.0
# says: is on tmpfs
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.path = "/var/cache/spill";
  fileSystems."/" = {
    device = "/dev/sda1";
    fsType = "ext4";
  };
  fileSystems."/var/cache" = {
    device = "none";
    fsType = "tmpfs";
  };
}
