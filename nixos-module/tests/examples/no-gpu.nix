# SPDX-License-Identifier: MIT OR Apache-2.0
# A machine without a GPU: RAM stands in for it, to see how Sluice behaves. The spill is
# a file, which is made at the first start.
{
  fileSystems."/var/lib/sluice" = {
    device = "/dev/disk/by-id/virtio-spill";
    fsType = "ext4";
  };

  services.sluice = {
    enable = true;
    swap.size = "192M";
    tier = {
      kind = "ram";
      size = "64M";
    };
    spill = {
      path = "/var/lib/sluice/spill";
      size = "192M";
    };
  };
}
