// SPDX-License-Identifier: GPL-2.0-only
/* Brings in the faulted pages alone. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_prefetch(sluice, sluice->page, 0);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("prefetch_none", .page_prefetch = (void *)page_prefetch);
