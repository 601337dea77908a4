// SPDX-License-Identifier: GPL-2.0-only
/* Refused: reads what lies behind its context, where the request is. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return *((volatile __u32 *)sluice + 40) ? SLUICE_GPU_DEFAULT : SLUICE_GPU_ITERATE;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
