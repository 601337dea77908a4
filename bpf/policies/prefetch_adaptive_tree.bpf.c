// SPDX-License-Identifier: GPL-2.0-only
/*
 * The native tree with a threshold that follows the fault rate: many faults in a period
 * mean that more should have come at once, few that what comes is enough.
 */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u64, period_us, 1000);
SLUICE_TUNABLE(__u32, busy_faults, 20);
SLUICE_TUNABLE(__u32, lowest, 5);
SLUICE_TUNABLE(__u32, highest, 75);

struct state {
	__u64 began_ns;
	__u32 faults;
	__u32 threshold;
};

SLUICE_ARRAY(states, struct state, 1);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	__u32 zero = 0;
	struct state *state = bpf_map_lookup_elem(&states, &zero);

	if (!state)
		return SLUICE_GPU_DEFAULT;
	if (!state->threshold)
		state->threshold = sluice->threshold;
	state->faults += 1;
	if (sluice->now_ns - state->began_ns >= period_us * 1000) {
		if (state->faults >= busy_faults)
			state->threshold = state->threshold / 2 > lowest ? state->threshold / 2 :
									   lowest;
		else if (state->threshold + 5 <= highest)
			state->threshold += 5;
		state->began_ns = sluice->now_ns;
		state->faults = 0;
	}
	return SLUICE_GPU_ITERATE;
}

SLUICE_HOOK(page_prefetch_iter, struct sluice_gpu_prefetch_ctx)
{
	__u32 zero = 0;
	struct state *state = bpf_map_lookup_elem(&states, &zero);

	if (state && sluice->node_occupied * 100 > sluice->node_pages * state->threshold)
		sluice_bpf_prefetch(sluice, sluice->node_first, sluice->node_pages);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("prefetch_adaptive_tree",
	.page_prefetch = (void *)page_prefetch,
	.page_prefetch_iter = (void *)page_prefetch_iter);
