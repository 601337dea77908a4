// SPDX-License-Identifier: GPL-2.0-only
/*
 * Gives timeslices and turns by the tenant's class, and holds on to them: a client that
 * asks for another timeslice gets its class's.
 */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u64, guaranteed_us, 10000);
SLUICE_TUNABLE(__u64, normal_us, 2000);
SLUICE_TUNABLE(__u64, preemptible_us, 500);

static __always_inline int decide(struct sluice_gpu_task_ctx *sluice)
{
	switch (sluice->who.tenant_class) {
	case SLUICE_GPU_CLASS_GUARANTEED:
		sluice_bpf_timeslice(sluice, guaranteed_us);
		sluice_bpf_interleave(sluice, 2);
		break;
	case SLUICE_GPU_CLASS_PREEMPTIBLE:
		sluice_bpf_timeslice(sluice, preemptible_us);
		sluice_bpf_interleave(sluice, 0);
		break;
	default:
		sluice_bpf_timeslice(sluice, normal_us);
		sluice_bpf_interleave(sluice, 1);
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(task_init, struct sluice_gpu_task_ctx)
{
	return decide(sluice);
}

SLUICE_HOOK(timeslice_control, struct sluice_gpu_task_ctx)
{
	return decide(sluice);
}

SLUICE_SCHED_POLICY("timeslice_by_class",
	.task_init = (void *)task_init,
	.timeslice_control = (void *)timeslice_control);
