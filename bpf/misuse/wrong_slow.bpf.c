// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and takes far too long: a loop that the verifier walks in full. */
#include "../lib/policy.bpf.h"

SLUICE_ARRAY(sum, __u64, 1);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	__u32 zero = 0, i;
	__u64 *value = bpf_map_lookup_elem(&sum, &zero);

	if (!value)
		return SLUICE_GPU_DEFAULT;
	for (i = 0; i < 20000; i++)
		*value += bpf_ktime_get_ns();
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("wrong_slow", .page_prefetch = (void *)page_prefetch);
