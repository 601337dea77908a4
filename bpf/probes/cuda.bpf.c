// SPDX-License-Identifier: GPL-2.0-only
/*
 * Watches the CUDA driver library of an unpatched driver: who asks for memory and gets
 * it or not, who gives it back, who launches kernels. It changes nothing. A section says
 * by its end which function of the library it is on.
 */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "cuda.h"

char LICENSE[] SEC("license") = "GPL";

/* Launches are too many to tell of each. */
const volatile __u64 launches_per_event = 1000;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* Events that found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps"), launches SEC(".maps");

struct pending {
	__u64 bytes;
	__u64 result_at;
};

/* Allocations that have been entered and not yet left, by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct pending);
} entered SEC(".maps");

static __always_inline void tell(__u32 call, __u64 bytes, __u64 address, __s32 result)
{
	struct sluice_cuda_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	__u64 id = bpf_get_current_pid_tgid(), *count;
	__u32 zero = 0;

	if (!event) {
		count = bpf_map_lookup_elem(&lost, &zero);
		if (count)
			*count += 1;
		return;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->cgroup_id = bpf_get_current_cgroup_id();
	event->bytes = bytes;
	event->address = address;
	event->tgid = id >> 32;
	event->tid = (__u32)id;
	event->call = call;
	event->result = result;
	bpf_get_current_comm(event->comm, sizeof(event->comm));
	bpf_ringbuf_submit(event, 0);
}

static __always_inline int enter(struct pt_regs *ctx)
{
	struct pending pending = {
		.result_at = PT_REGS_PARM1(ctx),
		.bytes = PT_REGS_PARM2(ctx),
	};
	__u64 id = bpf_get_current_pid_tgid();

	bpf_map_update_elem(&entered, &id, &pending, BPF_ANY);
	return 0;
}

static __always_inline int leave(struct pt_regs *ctx)
{
	__u64 id = bpf_get_current_pid_tgid(), address = 0;
	struct pending *pending = bpf_map_lookup_elem(&entered, &id);
	__s32 result = PT_REGS_RC(ctx);

	if (!pending)
		return 0;
	if (!result)
		bpf_probe_read_user(&address, sizeof(address), (void *)pending->result_at);
	tell(SLUICE_CUDA_ALLOC, pending->bytes, address, result);
	bpf_map_delete_elem(&entered, &id);
	return 0;
}

/* Each has the place for its result first and the size second. */
#define ALLOCATION(function)                                            \
	SEC("uprobe/" #function) int function##_in(struct pt_regs *ctx) \
	{                                                               \
		return enter(ctx);                                      \
	}                                                               \
	SEC("uretprobe/" #function) int function##_out(struct pt_regs *ctx) \
	{                                                               \
		return leave(ctx);                                      \
	}

ALLOCATION(cuMemAlloc_v2)
ALLOCATION(cuMemAllocManaged)
ALLOCATION(cuMemAllocAsync)
ALLOCATION(cuMemCreate)

SEC("uprobe/cuMemFree_v2")
int free_in(struct pt_regs *ctx)
{
	tell(SLUICE_CUDA_FREE, 0, PT_REGS_PARM1(ctx), 0);
	return 0;
}

SEC("uprobe/cuLaunchKernel")
int launch_in(struct pt_regs *ctx)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&launches, &zero);

	if (!count)
		return 0;
	*count += 1;
	if (*count >= launches_per_event) {
		tell(SLUICE_CUDA_LAUNCH, *count, 0, 0);
		*count = 0;
	}
	return 0;
}
