# SPDX-License-Identifier: MIT OR Apache-2.0
# says: a name there is no tenant's name: Ollama
{
  services.sluice.enable = true;
  services.sluice.swap.size = "8G";
  services.sluice.tier.kind = "ram";
  services.sluice.spill.path = "/dev/disk/by-partlabel/sluice-spill";
  services.sluice.tenants.Ollama = {
    unit = "ollama.service";
    memory.min = "2G";
  };
}
