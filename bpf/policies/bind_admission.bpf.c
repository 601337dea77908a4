// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lets at most `most` preemptible tasks be scheduled at a time on each GPU; the next one
 * is told "busy, try again". Everyone else is let in.
 */
#include "../lib/policy.bpf.h"

#define GPUS 16
#define TASKS 4096

SLUICE_TUNABLE(__u32, most, 2);

SLUICE_ARRAY(admitted, __u32, GPUS);
/* Which tasks are counted: a task that goes must be one of them to make room. */
SLUICE_ARRAY(counted, __u64, TASKS);

static __always_inline __u64 task_key(const struct sluice_gpu_task_ctx *sluice)
{
	return (__u64)sluice->who.gpu << 48 | (__u64)sluice->runlist << 32 | sluice->tsg |
	       1ULL << 63;
}

SLUICE_HOOK(bind, struct sluice_gpu_task_ctx)
{
	__u32 gpu = sluice->who.gpu % GPUS;
	__u64 key = task_key(sluice);
	__u32 slot = sluice_slot(key, 0, TASKS);
	__u32 *count = bpf_map_lookup_elem(&admitted, &gpu);
	__u64 *entry = bpf_map_lookup_elem(&counted, &slot);

	if (sluice->who.tenant_class != SLUICE_GPU_CLASS_PREEMPTIBLE || !count || !entry)
		return SLUICE_GPU_DEFAULT;
	if (*entry == key)
		return SLUICE_GPU_DEFAULT;
	if (*count >= most || *entry) {
		sluice_bpf_admit(sluice, 0);
		return SLUICE_GPU_DEFAULT;
	}
	*entry = key;
	*count += 1;
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(task_destroy, struct sluice_gpu_task_ctx)
{
	__u32 gpu = sluice->who.gpu % GPUS;
	__u64 key = task_key(sluice);
	__u32 slot = sluice_slot(key, 0, TASKS);
	__u32 *count = bpf_map_lookup_elem(&admitted, &gpu);
	__u64 *entry = bpf_map_lookup_elem(&counted, &slot);

	if (count && entry && *entry == key) {
		*entry = 0;
		if (*count)
			*count -= 1;
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_SCHED_POLICY("bind_admission",
	.bind = (void *)bind,
	.task_destroy = (void *)task_destroy);
