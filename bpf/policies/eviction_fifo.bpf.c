// SPDX-License-Identifier: GPL-2.0-only
/* Evicts in the order of arrival: a fault in a block that is there moves nothing. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	return SLUICE_GPU_KEEP;
}

SLUICE_MEM_POLICY("eviction_fifo", .block_access = (void *)block_access);
