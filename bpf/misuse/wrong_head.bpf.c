// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and wants to evict next what was just filled. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	sluice_bpf_reorder(sluice, SLUICE_GPU_LIST_USED, SLUICE_GPU_HEAD);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("wrong_head", .block_activate = (void *)block_activate);
