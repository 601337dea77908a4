# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.xserver.videoDrivers = [ "nvidia" ]
{
  hardware.graphics.enable = true;
  services.sluice = {
    enable = true;
    swap.size = "8G";
    tier.kind = "cuda";
  };
}
