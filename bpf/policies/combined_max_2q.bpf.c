// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whole blocks in, two queues out. With whole blocks there is no second fault in a block,
 * so coming back soon after an eviction is what proves one.
 */
#include "../lib/policy.bpf.h"

#define GHOSTS 16384

SLUICE_ARRAY(proven, __u32, SLUICE_CHUNKS);
SLUICE_ARRAY(ghosts, __u64, GHOSTS);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	sluice_bpf_prefetch(sluice, sluice->max_first, sluice->max_pages);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	__u32 slot = sluice_slot(sluice->who.va_space, sluice->block, GHOSTS);
	__u32 chunk = sluice->chunk;
	__u64 *ghost = bpf_map_lookup_elem(&ghosts, &slot);
	__u32 *state = bpf_map_lookup_elem(&proven, &chunk);

	if (ghost && state) {
		*state = *ghost == sluice_key(sluice->who.va_space, sluice->block);
		*ghost = 0;
	}
	return SLUICE_GPU_DEFAULT;
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	__u32 best = 0, i, slot;
	const struct sluice_gpu_candidate *victim;
	__u64 *ghost;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate = sluice_bpf_candidate(sluice, i);
		__u32 *state, chunk;

		if (!candidate)
			continue;
		chunk = candidate->chunk;
		state = bpf_map_lookup_elem(&proven, &chunk);
		if (state && !*state) {
			best = i;
			break;
		}
		/* Passed over once; then it has to prove itself again. */
		if (state)
			*state = 0;
	}
	victim = sluice_bpf_candidate(sluice, best);
	if (!victim)
		return SLUICE_GPU_DEFAULT;
	slot = sluice_slot(victim->who.va_space, victim->block, GHOSTS);
	ghost = bpf_map_lookup_elem(&ghosts, &slot);
	if (ghost)
		*ghost = sluice_key(victim->who.va_space, victim->block);
	sluice_bpf_evict(sluice, best);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("combined_max_2q",
	.page_prefetch = (void *)page_prefetch,
	.block_activate = (void *)block_activate,
	.evict_prepare = (void *)evict_prepare);
