# SPDX-License-Identifier: MIT OR Apache-2.0
# A laptop with two GPUs: the built-in one has the screen, so that most of the other's
# memory is free most of the time. A partition takes the pages when a program wants the
# GPU, and on battery, where that one sleeps; nearly empty, it is left asleep for a while.
# zram stays, for what neither holds.
{
  services.xserver.videoDrivers = [ "nvidia" ];
  hardware.graphics.enable = true;
  hardware.nvidia = {
    open = true;
    prime = {
      offload.enable = true;
      intelBusId = "PCI:0:2:0";
      nvidiaBusId = "PCI:1:0:0";
    };
  };
  nixpkgs.config.allowUnfree = true;

  zramSwap.enable = true;

  services.sluice = {
    enable = true;
    swap.size = "8G";
    tier = {
      kind = "cuda";
      size = "3G";
      reserve = "512M";
    };
    cuda.devices = [ "0000:01:00.0" ];
    spill.path = "/dev/disk/by-partlabel/sluice-spill";
    battery = {
      onBattery = "stop";
      resumeThreshold = 30;
    };
  };
}
