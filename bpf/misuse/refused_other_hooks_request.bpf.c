// SPDX-License-Identifier: GPL-2.0-only
/* Refused: asks in one hook for what belongs to another. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_evict((struct sluice_gpu_evict_ctx *)sluice, 0);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
