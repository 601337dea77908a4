// SPDX-License-Identifier: GPL-2.0-only
/* Refused: attached by its map, which would keep it attached when its loader is gone. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SEC(".struct_ops")
struct sluice_gpu_mem_ops mem_ops = {
	.page_prefetch = (void *)page_prefetch,
	SLUICE_PLAIN("without_link"),
};
