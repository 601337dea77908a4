// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two queues: a block is on probation until it is faulted in again some time after it came,
 * or comes back soon after it was evicted; those on probation go first. So a scan, whose
 * blocks are used once, does not push out what is used again and again.
 */
#include "../lib/policy.bpf.h"

#define GHOSTS 16384

/* Faults of a block this soon after it came belong to the same use of it. */
SLUICE_TUNABLE(__u64, same_use_us, 1000);

struct stay {
	__u64 since_ns;
	__u64 proven;
};

SLUICE_ARRAY(stays, struct stay, SLUICE_CHUNKS);
/* Blocks that were evicted, by slot; a newer one takes the slot of an older one. */
SLUICE_ARRAY(ghosts, __u64, GHOSTS);

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	__u64 key = sluice_key(sluice->who.va_space, sluice->block);
	__u32 slot = sluice_slot(sluice->who.va_space, sluice->block, GHOSTS);
	__u32 chunk = sluice->chunk;
	__u64 *ghost = bpf_map_lookup_elem(&ghosts, &slot);
	struct stay *stay = bpf_map_lookup_elem(&stays, &chunk);

	if (!ghost || !stay)
		return SLUICE_GPU_DEFAULT;
	stay->since_ns = sluice->now_ns;
	stay->proven = *ghost == key;
	*ghost = 0;
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx)
{
	__u32 chunk = sluice->chunk;
	struct stay *stay = bpf_map_lookup_elem(&stays, &chunk);

	if (stay && sluice->now_ns - stay->since_ns > same_use_us * 1000)
		stay->proven = 1;
	return SLUICE_GPU_DEFAULT;
}

static __always_inline void remember(const struct sluice_gpu_candidate *victim)
{
	__u32 slot = sluice_slot(victim->who.va_space, victim->block, GHOSTS);
	__u64 *ghost = bpf_map_lookup_elem(&ghosts, &slot);

	if (ghost)
		*ghost = sluice_key(victim->who.va_space, victim->block);
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	const struct sluice_gpu_candidate *first = sluice_bpf_candidate(sluice, 0);
	__u32 i;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate = sluice_bpf_candidate(sluice, i);
		struct stay *stay;
		__u32 chunk;

		if (!candidate)
			continue;
		chunk = candidate->chunk;
		stay = bpf_map_lookup_elem(&stays, &chunk);
		if (stay && !stay->proven) {
			remember(candidate);
			sluice_bpf_evict(sluice, i);
			return SLUICE_GPU_DEFAULT;
		}
	}
	if (first)
		remember(first);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("eviction_lru_2q",
	.block_activate = (void *)block_activate,
	.block_access = (void *)block_access,
	.evict_prepare = (void *)evict_prepare);
