// SPDX-License-Identifier: GPL-2.0-only
/*
 * Evicts in the order of arrival, but passes over a chunk up to `chances` times. One that
 * was passed over and is then faulted in again has all its chances back, and stands last.
 */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u32, chances, 8);

SLUICE_ARRAY(left, __u32, SLUICE_CHUNKS);

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	__u32 chunk = sluice->chunk;
	__u32 *count = bpf_map_lookup_elem(&left, &chunk);

	if (count)
		*count = chances;
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	__u32 chunk = sluice->chunk;
	__u32 *count = bpf_map_lookup_elem(&left, &chunk);

	if (!count || *count == chances)
		return SLUICE_GPU_KEEP;
	*count = chances;
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	__u32 i;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate = sluice_bpf_candidate(sluice, i);
		__u32 *count, chunk;

		if (!candidate)
			continue;
		chunk = candidate->chunk;
		count = bpf_map_lookup_elem(&left, &chunk);
		if (!count)
			continue;
		if (!*count) {
			sluice_bpf_evict(sluice, i);
			break;
		}
		*count -= 1;
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("eviction_fifo_chance",
	.block_activate = (void *)block_activate,
	.block_access = (void *)block_access,
	.evict_prepare = (void *)evict_prepare);
