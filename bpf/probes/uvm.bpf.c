// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches NVIDIA's UVM as it is, without a patch: faults of both sides, what is brought
 * in beside them, evictions. The module must have type information; the names and
 * arguments of these functions are the same in all its open releases from 535 on.
 */
#include "memory.bpf.h"

#define CORE __attribute__((preserve_access_index))

/* As much of the kernel's and the module's types as is looked at. */
struct kernfs_node {
	__u64 id;
} CORE;

struct cgroup {
	struct kernfs_node *kn;
} CORE;

struct css_set {
	struct cgroup *dfl_cgrp;
} CORE;

struct task_struct {
	int tgid;
	struct css_set *cgroups;
} CORE;

struct mm_struct {
	struct task_struct *owner;
} CORE;

struct uvm_va_space_mm_struct {
	struct mm_struct *mm;
} CORE;

struct uvm_va_space_struct {
	struct uvm_va_space_mm_struct va_space_mm;
} CORE;

struct uvm_va_range_struct {
	struct uvm_va_space_struct *va_space;
} CORE;

struct uvm_va_block_struct {
	struct uvm_va_range_struct *va_range;
	__u64 start;
	__u64 end;
} CORE;

/* The same in newer releases, where a managed range is a type of its own. */
struct uvm_va_range_managed_struct {
	struct uvm_va_range_struct va_range;
} CORE;

struct uvm_va_block_struct___managed {
	struct uvm_va_range_managed_struct *managed_range;
} CORE;

/* Faults of a GPU are served by a kernel thread, so the owner is looked up by its memory. */
static __always_inline void describe(struct sluice_memory_event *event,
				     struct uvm_va_block_struct *block)
{
	struct uvm_va_block_struct___managed *newer = (void *)block;
	struct task_struct *owner;

	if (bpf_core_field_exists(newer->managed_range))
		owner = BPF_CORE_READ(newer, managed_range, va_range.va_space, va_space_mm.mm,
				      owner);
	else
		owner = BPF_CORE_READ(block, va_range, va_space, va_space_mm.mm, owner);
	event->time_ns = bpf_ktime_get_ns();
	event->tgid = BPF_CORE_READ(owner, tgid);
	event->cgroup_id = BPF_CORE_READ(owner, cgroups, dfl_cgrp, kn, id);
}

SEC("fentry/uvm_va_block_cpu_fault")
int BPF_PROG(cpu_fault, struct uvm_va_block_struct *block, __u64 address, _Bool is_write)
{
	struct sluice_memory_event event = {
		.what = SLUICE_MEMORY_FAULT,
		.bytes = 1 << PAGE_SHIFT,
		.by_cpu = 1,
	};

	describe(&event, block);
	event.address = address >> PAGE_SHIFT << PAGE_SHIFT;
	event.writes = is_write;
	tell(&event);
	return 0;
}

/*
 * Arguments: block, context, new residency (a processor's number), faulted pages, faulted
 * region, tree, hint. A hint is the mask of pages to bring in and the processor to bring
 * them to; to another one, or to none, it is not followed. Processor 0 is the host's; its
 * faults are told above.
 */
SEC("fexit/uvm_perf_prefetch_get_hint_va_block")
int hinted(unsigned long long *ctx)
{
	struct uvm_va_block_struct *block = (void *)ctx[0];
	struct sluice_memory_event event = { .by_cpu = !(__u32)ctx[2] };
	__u64 begin = BPF_CORE_READ(block, start);
	__u32 bring_to = -1;
	struct mask mask;

	describe(&event, block);
	if (!event.by_cpu) {
		bpf_probe_read_kernel(&mask, sizeof(mask), (void *)ctx[3]);
		tell_mask(&event, SLUICE_MEMORY_FAULT, &mask, begin);
	}
	bpf_probe_read_kernel(&mask, sizeof(mask), (void *)ctx[6]);
	bpf_probe_read_kernel(&bring_to, sizeof(bring_to), (void *)ctx[6] + sizeof(mask));
	if (bring_to == (__u32)ctx[2])
		tell_mask(&event, SLUICE_MEMORY_PREFETCH, &mask, begin);
	return 0;
}

/* What of the block is on the GPU takes long to find; told is all of it. */
SEC("fentry/uvm_va_block_evict_chunks")
int BPF_PROG(evicted, struct uvm_va_block_struct *block)
{
	struct sluice_memory_event event = { .what = SLUICE_MEMORY_EVICT };

	describe(&event, block);
	event.address = BPF_CORE_READ(block, start);
	event.bytes = BPF_CORE_READ(block, end) + 1 - event.address;
	tell(&event);
	return 0;
}
