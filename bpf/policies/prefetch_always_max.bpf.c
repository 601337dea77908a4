// SPDX-License-Identifier: GPL-2.0-only
/* Brings in all of a block at its first fault. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_prefetch(sluice, sluice->max_first, sluice->max_pages);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("prefetch_always_max", .page_prefetch = (void *)page_prefetch);
