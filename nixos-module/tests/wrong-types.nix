# SPDX-License-Identifier: MIT OR Apache-2.0
# Values that are no values of their options: each is refused when it is evaluated.
[
  {
    why = "a size in a unit that there is not";
    sluice.swap.size = "8GB";
  }
  {
    why = "a size with a blank";
    sluice.swap.size = "8 G";
  }
  {
    why = "a size with a fraction";
    sluice.swap.size = "1.5G";
  }
  {
    why = "a suffix without its unit";
    sluice.swap.size = "8iB";
  }
  {
    why = "a size that is a number";
    sluice.swap.size = 8;
  }
  {
    why = "no size at all";
    sluice.tier.reserve = null;
  }
  {
    why = "a priority above the kernel's";
    sluice.swap.priority = 32768;
  }
  {
    why = "a priority below -1";
    sluice.swap.priority = -2;
  }
  {
    why = "metrics for other machines";
    sluice.metrics.listen = "0.0.0.0:9778";
  }
  {
    why = "metrics without a port";
    sluice.metrics.listen = "127.0.0.1";
  }
  {
    why = "no devices";
    sluice.swap.devices = 0;
  }
  {
    why = "a boolean in quotes";
    sluice.swap.discard = "true";
  }
  {
    why = "a durability that there is not";
    sluice.swap.durability = "writethrough";
  }
  {
    why = "a tier that there is not";
    sluice.tier.kind = "disk";
  }
  {
    why = "no GPU at all";
    sluice.cuda.devices = [ ];
  }
  {
    why = "GPUs that are no list";
    sluice.cuda.devices = "0";
  }
  {
    why = "a library without a full path";
    sluice.cuda.library = "libcuda.so.1";
  }
  {
    why = "a spill without a full path";
    sluice.spill.path = "spill";
  }
  {
    why = "a device number that nbd cannot have";
    sluice.nbd.index = 1048576;
  }
  {
    why = "a timeout that loses pages over a slow restart";
    sluice.nbd.deadConnectionTimeoutS = 0;
  }
  {
    why = "a timer that is always over";
    sluice.nbd.ioTimeoutMs = 9;
  }
  {
    why = "a level that there is not";
    sluice.log.level = "verbose";
  }
  {
    why = "an option that there is not";
    sluice.swap.sizes = "8G";
  }
  {
    why = "a function among the settings";
    sluice.settings.swap.size = size: size;
  }
  {
    why = "a policy by its path";
    sluice.policies.eviction = "./eviction_lfu.bpf.o";
  }
  {
    why = "a budget of no time";
    sluice.policies.budgetUs = 0;
  }
  {
    why = "faults that may not even stay";
    sluice.policies.maxFaultsPercent = 100;
  }
  {
    why = "a control group without a full path";
    sluice.policies.scope = [ { cgroup = "machine.slice"; } ];
  }
  {
    why = "a tunable that is a text";
    sluice.policies.parameters.eviction_lfu.most = "3";
  }
]
