// SPDX-License-Identifier: GPL-2.0-only
/*
 * Refused: functions that the verifier walks once, however often they are called. Their
 * rounds multiply.
 */
#include "../lib/policy.bpf.h"

SLUICE_ARRAY(sum, __u64, 1);

__attribute__((noinline)) int inner(__u32 start)
{
	__u32 i;

	for (i = 0; i < 10000; i++)
		start += bpf_get_prandom_u32();
	return start;
}

__attribute__((noinline)) int outer(__u32 start)
{
	__u32 i;

	for (i = 0; i < 10000; i++)
		start += inner(start);
	return start;
}

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&sum, &zero);

	if (value)
		*value += outer(sluice->page);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
