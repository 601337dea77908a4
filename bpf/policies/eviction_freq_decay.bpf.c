// SPDX-License-Identifier: GPL-2.0-only
/*
 * Evicts what was faulted in least often, of late: a count is worth half after each
 * `half_life_ms` of the manager's clock.
 */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u64, half_life_ms, 20);

struct heat {
	__u64 at_ns;
	/* Sixteenths, so that small counts fade in steps too. */
	__u64 count;
};

SLUICE_ARRAY(heats, struct heat, SLUICE_CHUNKS);

static __always_inline __u64 now_worth(const struct heat *heat, __u64 now_ns)
{
	__u64 age = now_ns > heat->at_ns ? now_ns - heat->at_ns : 0;
	__u64 halvings = age / (half_life_ms * 1000000 + 1);

	return halvings > 63 ? 0 : heat->count >> halvings;
}

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	__u32 chunk = sluice->chunk;
	struct heat *heat = bpf_map_lookup_elem(&heats, &chunk);

	if (heat) {
		heat->at_ns = sluice->now_ns;
		heat->count = 16;
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	__u32 chunk = sluice->chunk;
	struct heat *heat = bpf_map_lookup_elem(&heats, &chunk);

	if (heat) {
		heat->count = now_worth(heat, sluice->now_ns) + 16;
		heat->at_ns = sluice->now_ns;
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	__u64 lowest = ~0ULL;
	__u32 best = 0, i;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate = sluice_bpf_candidate(sluice, i);
		struct heat *heat;
		__u32 chunk;
		__u64 worth;

		if (!candidate)
			continue;
		chunk = candidate->chunk;
		heat = bpf_map_lookup_elem(&heats, &chunk);
		if (!heat)
			continue;
		worth = now_worth(heat, sluice->now_ns);
		if (worth < lowest) {
			lowest = worth;
			best = i;
		}
	}
	if (lowest != ~0ULL)
		sluice_bpf_evict(sluice, best);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("eviction_freq_decay",
	.block_activate = (void *)block_activate,
	.block_access = (void *)block_access,
	.evict_prepare = (void *)evict_prepare);
