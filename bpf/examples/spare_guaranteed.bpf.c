// SPDX-License-Identifier: GPL-2.0-only
/* Evicts from guaranteed tenants only when nobody else has anything. */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u32, look_at, 16);

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	__u32 i;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate;

		if (i >= look_at)
			break;
		candidate = sluice_bpf_candidate(sluice, i);
		if (candidate && candidate->who.tenant_class != SLUICE_GPU_CLASS_GUARANTEED) {
			sluice_bpf_evict(sluice, i);
			break;
		}
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("spare_guaranteed", .evict_prepare = (void *)evict_prepare);
