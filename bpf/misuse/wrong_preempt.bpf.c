// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and takes the GPU from a task it is told, whoever's it is. */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u32, tsg, 0);

SLUICE_HOOK(bind, struct sluice_gpu_task_ctx)
{
	if (sluice->who.tenant_class == SLUICE_GPU_CLASS_GUARANTEED)
		sluice_bpf_preempt(sluice, sluice->runlist, tsg);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_SCHED_POLICY("wrong_preempt", .bind = (void *)bind);
