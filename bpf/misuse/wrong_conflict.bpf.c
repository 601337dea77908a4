// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and asks for two different things at once. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_prefetch(sluice, 0, 1);
	sluice_bpf_prefetch(sluice, 0, 2);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("wrong_conflict", .page_prefetch = (void *)page_prefetch);
