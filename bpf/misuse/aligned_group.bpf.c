// SPDX-License-Identifier: GPL-2.0-only
/* No misuse: brings in the eight pages around each fault, a result known beforehand. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_prefetch(sluice, sluice->page & ~7U, 8);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("aligned_group", .page_prefetch = (void *)page_prefetch);
