// SPDX-License-Identifier: GPL-2.0-only
/*
 * Evicts the chunk whose block was faulted in least often, of those that are first in
 * line. Counts are of this residence: a block that comes back begins anew.
 */
#include "../lib/lfu.bpf.h"

SLUICE_TUNABLE(__u32, most, 255);

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	lfu_begin(sluice);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	lfu_count(sluice, most);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	lfu_evict(sluice);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("eviction_lfu",
	.block_activate = (void *)block_activate,
	.block_access = (void *)block_access,
	.evict_prepare = (void *)evict_prepare);
