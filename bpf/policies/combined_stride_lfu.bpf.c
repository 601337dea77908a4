// SPDX-License-Identifier: GPL-2.0-only
/* Follows strides, and evicts what was faulted in least often. */
#include "../lib/lfu.bpf.h"
#include "../lib/stride.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	stride_prefetch(sluice);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	lfu_begin(sluice);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	lfu_count(sluice, ~0U);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	lfu_evict(sluice);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("combined_stride_lfu",
	.page_prefetch = (void *)page_prefetch,
	.block_activate = (void *)block_activate,
	.block_access = (void *)block_access,
	.evict_prepare = (void *)evict_prepare);
