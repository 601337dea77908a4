// SPDX-License-Identifier: GPL-2.0-only
/* Refused: prints on a fault path. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	bpf_printk("page %u", sluice->page);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
