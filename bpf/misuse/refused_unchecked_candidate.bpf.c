// SPDX-License-Identifier: GPL-2.0-only
/* Refused: uses a candidate that may not be there. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	if (sluice_bpf_candidate(sluice, 3)->resident)
		sluice_bpf_evict(sluice, 3);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .evict_prepare = (void *)evict_prepare);
