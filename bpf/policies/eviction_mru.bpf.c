// SPDX-License-Identifier: GPL-2.0-only
/*
 * Evicts first what was faulted in again most recently: for walks over more memory than
 * there is, where what was just used is used last. A chunk that has just got its block
 * is at the other end: it must not go before it was of use.
 */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	sluice_bpf_reorder(sluice, SLUICE_GPU_LIST_USED, SLUICE_GPU_HEAD);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("eviction_mru", .block_access = (void *)block_access);
