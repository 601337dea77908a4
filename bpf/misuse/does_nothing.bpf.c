// SPDX-License-Identifier: GPL-2.0-only
/* No misuse: has each memory hook and asks for nothing, to see what being asked costs. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("does_nothing",
	.page_prefetch = (void *)page_prefetch,
	.block_activate = (void *)block_activate,
	.block_access = (void *)block_access,
	.evict_prepare = (void *)evict_prepare);
