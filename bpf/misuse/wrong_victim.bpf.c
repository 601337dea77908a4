// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and names the first candidate, whoever's it is. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	sluice_bpf_evict(sluice, 0);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("wrong_victim", .evict_prepare = (void *)evict_prepare);
