/* SPDX-License-Identifier: GPL-2.0-only */
/* What the probes on GPU memory managers tell of each fault, prefetch and eviction. */
#ifndef SLUICE_PROBE_MEMORY_H
#define SLUICE_PROBE_MEMORY_H

enum sluice_memory_what {
	/* Pages of a block that were touched and not there: from the first one on. */
	SLUICE_MEMORY_FAULT = 1,
	/* Pages of a block that come in beside faulted ones. */
	SLUICE_MEMORY_PREFETCH = 2,
	/* Pages of a block that lose their GPU memory to another one. */
	SLUICE_MEMORY_EVICT = 3,
};

struct sluice_memory_event {
	/* The manager's clock. */
	__u64 time_ns;
	/* The first page's, in the owner's address space. */
	__u64 address;
	/* Of all pages together, which need not be neighbours. */
	__u64 bytes;
	/* 0 if it is not known. */
	__u64 cgroup_id;
	/* The owner; never the thread that happens to do the work. 0 if it is not known. */
	__u32 tgid;
	__u32 what;
	/* 1 if the fault was by the processor, on memory that the GPU may have. */
	__u32 by_cpu;
	__u32 writes;
};

#endif /* SLUICE_PROBE_MEMORY_H */
