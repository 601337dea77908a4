// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shares memory by cgroup: a cgroup has a part of the chunks by its class, in percent;
 * who is over it most pays for whoever needs a chunk. Up to 16 cgroups are counted; what
 * others have is evicted as without a policy.
 */
#include "../lib/policy.bpf.h"

#define CGROUPS 16

SLUICE_TUNABLE(__u32, guaranteed_percent, 70);
SLUICE_TUNABLE(__u32, normal_percent, 50);
SLUICE_TUNABLE(__u32, preemptible_percent, 20);

struct share {
	__u64 cgroup_id;
	__s64 chunks;
};

SLUICE_ARRAY(shares, struct share, CGROUPS);
/* Whose each chunk is: a place in shares and one more, or 0. */
SLUICE_ARRAY(owners, __u32, SLUICE_CHUNKS);

/* The place of a cgroup, taken if it has none yet; CGROUPS if there is none left. */
static __always_inline __u32 place_of(__u64 cgroup_id)
{
	__u32 i;

	for (i = 0; i < CGROUPS; i++) {
		__u32 key = i;
		struct share *share = bpf_map_lookup_elem(&shares, &key);

		if (!share)
			break;
		if (!share->cgroup_id)
			share->cgroup_id = cgroup_id;
		if (share->cgroup_id == cgroup_id)
			return i;
	}
	return CGROUPS;
}

static __always_inline void add(__u32 place, __s64 chunks)
{
	struct share *share = bpf_map_lookup_elem(&shares, &place);

	if (share)
		__sync_fetch_and_add(&share->chunks, chunks);
}

SLUICE_HOOK(block_activate, struct sluice_gpu_block_ctx)
{
	__u32 chunk = sluice->chunk;
	__u32 *owner = bpf_map_lookup_elem(&owners, &chunk);
	__u32 place = place_of(sluice->who.cgroup_id);

	if (!owner)
		return SLUICE_GPU_DEFAULT;
	if (*owner)
		add(*owner - 1, -1);
	*owner = place == CGROUPS ? 0 : place + 1;
	if (*owner)
		add(place, 1);
	return SLUICE_GPU_DEFAULT;
}

static __always_inline __u32 percent_of(__u32 tenant_class)
{
	switch (tenant_class) {
	case SLUICE_GPU_CLASS_GUARANTEED:
		return guaranteed_percent;
	case SLUICE_GPU_CLASS_PREEMPTIBLE:
		return preemptible_percent;
	default:
		return normal_percent;
	}
}

SLUICE_HOOK(evict_prepare, struct sluice_gpu_evict_ctx)
{
	__s64 most = 0;
	__u32 best = 0, i;

	for (i = 0; i < 16; i++) {
		const struct sluice_gpu_candidate *candidate = sluice_bpf_candidate(sluice, i);
		struct share *share;
		__u32 *owner, chunk, place;
		__s64 over;

		if (!candidate)
			continue;
		chunk = candidate->chunk;
		owner = bpf_map_lookup_elem(&owners, &chunk);
		if (!owner || !*owner)
			continue;
		place = *owner - 1;
		share = bpf_map_lookup_elem(&shares, &place);
		if (!share)
			continue;
		over = share->chunks * 100 -
		       (__s64)sluice->chunks * percent_of(candidate->who.tenant_class);
		if (over > most) {
			most = over;
			best = i;
		}
	}
	if (most)
		sluice_bpf_evict(sluice, best);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("eviction_cgroup_quota",
	.block_activate = (void *)block_activate,
	.evict_prepare = (void *)evict_prepare);
