# SPDX-License-Identifier: MIT OR Apache-2.0
# The stock driver of NVIDIA asks no policy; what a parameter of it can do, it does.
{
  services.xserver.videoDrivers = [ "nvidia" ];
  hardware.graphics.enable = true;
  hardware.nvidia.open = true;
  nixpkgs.config.allowUnfree = true;

  services.sluice = {
    kernel.enable = true;
    policies.prefetch = "prefetch_tenant_tree";
    policies.parameters.prefetch_tenant_tree.normal = 25;
  };
}
