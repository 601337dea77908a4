// SPDX-License-Identifier: GPL-2.0-only
/* Refused: makes up a context of its own, for which it could request anything. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	struct sluice_gpu_block_ctx made_up = {};

	made_up.chunk = sluice->chunk;
	return sluice_bpf_reorder(&made_up, SLUICE_GPU_LIST_USED, SLUICE_GPU_TAIL);
}

SLUICE_MEM_POLICY("refused", .block_access = (void *)block_access);
