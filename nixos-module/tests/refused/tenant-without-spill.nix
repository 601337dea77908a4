# SPDX-License-Identifier: MIT OR Apache-2.0
# says: there is no spill that could take pages when ollama start
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.tenants.ollama = {
    unit = "ollama.service";
    memory.min = "2G";
  };
}
