# SPDX-License-Identifier: MIT OR Apache-2.0
# A machine for models, without a display, with two GPUs: pages go to the one that the
# models leave alone, over four devices for more at a time. Each page is in the spill too,
# so that a GPU that fails costs nothing and its memory is free again at once.
{
  # Needed without a display as well: both bring the driver and its library.
  services.xserver.videoDrivers = [ "nvidia" ];
  hardware.graphics.enable = true;
  hardware.nvidia.open = true;
  nixpkgs.config.allowUnfree = true;
  services.ollama.enable = true;

  services.sluice = {
    enable = true;
    swap = {
      size = "64G";
      devices = 4;
      durability = "mirror";
    };
    tier = {
      kind = "cuda";
      size = "32G";
      reserve = "4G";
    };
    cuda.devices = [ "1" ];
    spill.path = "/dev/disk/by-partlabel/sluice-spill";
    # Starts once the store has given back what its models need.
    tenants.ollama = {
      unit = "ollama.service";
      memory.min = "20G";
    };
    # Of an uninterruptible supply.
    battery.onBattery = "keep";
    log.level = "warn";
  };
}
