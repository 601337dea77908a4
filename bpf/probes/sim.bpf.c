// SPDX-License-Identifier: GPL-2.0-only
/* Watches the simulated GPU: faults, what is brought in beside them, evictions. */
#include "memory.bpf.h"

#include "../intf.h"

/* As much of the module's types as is looked at; the rest is found at load time. */
struct sluice_gpu_owner {
	struct sluice_gpu_identity id;
} SLUICE_CORE;

struct sim_tenant {
	struct sluice_gpu_owner owner;
} SLUICE_CORE;

struct sim_block {
	struct sim_tenant *tenant;
	__u64 number;
	unsigned long resident[MASK_WORDS];
	unsigned long faulted[MASK_WORDS];
	unsigned long writes[MASK_WORDS];
} SLUICE_CORE;

struct sim {
	__u64 time_ns;
	__u64 stall_ns;
} SLUICE_CORE;

static __always_inline void describe(struct sluice_memory_event *event, struct sim *sim,
				     struct sim_block *block)
{
	event->time_ns = BPF_CORE_READ(sim, time_ns) + BPF_CORE_READ(sim, stall_ns);
	event->tgid = BPF_CORE_READ(block, tenant, owner.id.owner_tgid);
	event->cgroup_id = BPF_CORE_READ(block, tenant, owner.id.cgroup_id);
}

/* The mask holds the faulted pages when it is called, and all that come in afterwards. */
SEC("fexit/sim_prefetch")
int BPF_PROG(prefetched, struct sim *sim, struct sim_block *block, unsigned long *mask)
{
	struct sluice_memory_event event = {};
	struct mask faulted, resident, come;
	__u64 begin = BPF_CORE_READ(block, number) << BLOCK_SHIFT;
	int i;

	describe(&event, sim, block);
	bpf_core_read(&faulted, sizeof(faulted), &block->writes);
	event.writes = mask_pages(&faulted) != 0;
	bpf_core_read(&faulted, sizeof(faulted), &block->faulted);
	bpf_core_read(&resident, sizeof(resident), &block->resident);
	bpf_probe_read_kernel(&come, sizeof(come), mask);
	for (i = 0; i < MASK_WORDS; i++)
		come.word[i] &= ~(faulted.word[i] | resident.word[i]);
	tell_mask(&event, SLUICE_MEMORY_FAULT, &faulted, begin);
	event.writes = 0;
	tell_mask(&event, SLUICE_MEMORY_PREFETCH, &come, begin);
	return 0;
}

SEC("fentry/sim_evict")
int BPF_PROG(evicted, struct sim *sim, struct sim_block *block)
{
	struct sluice_memory_event event = {};
	struct mask resident;

	describe(&event, sim, block);
	bpf_core_read(&resident, sizeof(resident), &block->resident);
	tell_mask(&event, SLUICE_MEMORY_EVICT, &resident,
		  BPF_CORE_READ(block, number) << BLOCK_SHIFT);
	return 0;
}
