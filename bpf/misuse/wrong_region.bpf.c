// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and asks for pages that are not the block's. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_prefetch(sluice, 1, SLUICE_GPU_BLOCK_PAGES);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("wrong_region", .page_prefetch = (void *)page_prefetch);
