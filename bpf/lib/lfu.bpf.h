/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counts the faults of each chunk's block. Counts are of this residence: a block that
 * comes back begins anew.
 */
#ifndef SLUICE_LFU_BPF_H
#define SLUICE_LFU_BPF_H

#include "policy.bpf.h"

SLUICE_ARRAY(frequency, __u32, SLUICE_CHUNKS);

/* A block arrives in a chunk. */
static __always_inline void lfu_begin(struct sluice_gpu_block_ctx *sluice)
{
	__u32 chunk = sluice->chunk;
	__u32 *count = bpf_map_lookup_elem(&frequency, &chunk);

	if (count)
		*count = 1;
}

/* It is faulted in again; a count does not go beyond `most`. */
static __always_inline void lfu_count(struct sluice_gpu_block_ctx *sluice, __u32 most)
{
	__u32 chunk = sluice->chunk;
	__u32 *count = bpf_map_lookup_elem(&frequency, &chunk);

	if (count && *count < most)
		*count += 1;
}

/* Asks for the eviction of the least counted of those that are first in line. */
static __always_inline void lfu_evict(struct sluice_gpu_evict_ctx *sluice)
{
	__u32 best = 0, lowest = ~0U, i;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate = sluice_bpf_candidate(sluice, i);
		__u32 *count, chunk;

		if (!candidate)
			continue;
		chunk = candidate->chunk;
		count = bpf_map_lookup_elem(&frequency, &chunk);
		if (count && *count < lowest) {
			lowest = *count;
			best = i;
		}
	}
	if (lowest != ~0U)
		sluice_bpf_evict(sluice, best);
}

#endif
