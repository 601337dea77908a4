# SPDX-License-Identifier: MIT OR Apache-2.0
# A desktop that also plays games: while memory is not short, most of the GPU's is left to
# the compositor and the game, 3 GiB always, and a file takes the pages that have to go.
# `sluice suspend` before a game gives the rest back, `sluice resume` takes it again.
{
  services.xserver.videoDrivers = [ "nvidia" ];
  hardware.graphics.enable = true;
  hardware.nvidia.open = true;
  nixpkgs.config.allowUnfree = true;

  services.sluice = {
    enable = true;
    desktop.enable = true;
    swap.size = "12G";
    tier = {
      size = "6G";
      reserve = "3G";
    };
    spill = {
      path = "/var/lib/sluice/spill";
      size = "12G";
    };
    metrics.listen = "127.0.0.1:9778";
    control.idleTarget = "1G";
  };
}
