// SPDX-License-Identifier: GPL-2.0-only
/* Refused: a loop that need not end. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	while (bpf_get_prandom_u32() != 7)
		;
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
