# SPDX-License-Identifier: MIT OR Apache-2.0
# says: which the semantic patches were not checked with
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.xserver.videoDrivers = [ "nvidia" ];
  nixpkgs.config.allowUnfree = true;
  hardware.nvidia.open = true;
  services.sluice.kernel.enable = true;
  services.sluice.kernel.driver.enable = true;
}
