# SPDX-License-Identifier: MIT OR Apache-2.0
# says: services.sluice.tier.kind = "cuda"
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.cuda.devices = [ "0" ];
}
