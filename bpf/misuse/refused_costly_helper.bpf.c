// SPDX-License-Identifier: GPL-2.0-only
/* Refused: a helper whose cost has no bound that a hook could bear. */
#include "../lib/policy.bpf.h"

static long round(__u32 index, void *data)
{
	return 0;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	bpf_loop(1 << 20, round, 0, 0);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .block_access = (void *)block_access);
