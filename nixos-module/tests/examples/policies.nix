# SPDX-License-Identifier: MIT OR Apache-2.0
# GPU policies without any swap: they are for the simulated GPU until a driver asks them.
{
  services.sluice = {
    kernel.enable = true;
    policies = {
      eviction = "eviction_lfu";
      parameters.prefetch_stride.confidence = 3;
      scope = [
        {
          gpu = 0;
          cgroup = "/system.slice";
          prefetch = "prefetch_stride";
          budgetUs = 20;
        }
      ];
    };
  };
}
