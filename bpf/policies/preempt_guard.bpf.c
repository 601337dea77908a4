// SPDX-License-Identifier: GPL-2.0-only
/*
 * When a guaranteed task is scheduled for the first time or asks for a timeslice, takes
 * the GPU from the preemptible task that was scheduled last on its runlist. That task
 * stays runnable: this shortens one wait, it does not pause anyone.
 */
#include "../lib/policy.bpf.h"

#define RUNLISTS 64

struct last {
	__u32 known;
	__u32 tsg;
};

SLUICE_ARRAY(lasts, struct last, RUNLISTS);

static __always_inline struct last *last_of(const struct sluice_gpu_task_ctx *sluice)
{
	__u32 key = sluice_slot(sluice->who.gpu, sluice->runlist, RUNLISTS);

	return bpf_map_lookup_elem(&lasts, &key);
}

static __always_inline int guard(struct sluice_gpu_task_ctx *sluice)
{
	struct last *last = last_of(sluice);

	if (!last)
		return SLUICE_GPU_DEFAULT;
	if (sluice->who.tenant_class == SLUICE_GPU_CLASS_PREEMPTIBLE) {
		last->tsg = sluice->tsg;
		last->known = 1;
	} else if (sluice->who.tenant_class == SLUICE_GPU_CLASS_GUARANTEED && last->known) {
		sluice_bpf_preempt(sluice, sluice->runlist, last->tsg);
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(bind, struct sluice_gpu_task_ctx)
{
	return guard(sluice);
}

SLUICE_HOOK(timeslice_control, struct sluice_gpu_task_ctx)
{
	return guard(sluice);
}

SLUICE_HOOK(task_destroy, struct sluice_gpu_task_ctx)
{
	struct last *last = last_of(sluice);

	if (last && last->tsg == sluice->tsg)
		last->known = 0;
	return SLUICE_GPU_DEFAULT;
}

SLUICE_SCHED_POLICY("preempt_guard",
	.bind = (void *)bind,
	.timeslice_control = (void *)timeslice_control,
	.task_destroy = (void *)task_destroy);
