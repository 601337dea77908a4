// SPDX-License-Identifier: GPL-2.0-only
/*
 * The native tree with a threshold for each class of tenants: a guaranteed one has much
 * brought in early, a preemptible one little.
 */
#include "../lib/policy.bpf.h"

SLUICE_TUNABLE(__u32, guaranteed, 5);
SLUICE_TUNABLE(__u32, normal, 51);
SLUICE_TUNABLE(__u32, preemptible, 90);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return SLUICE_GPU_ITERATE;
}

SLUICE_HOOK(page_prefetch_iter, struct sluice_gpu_prefetch_ctx)
{
	__u32 threshold = normal;

	if (sluice->who.tenant_class == SLUICE_GPU_CLASS_GUARANTEED)
		threshold = guaranteed;
	else if (sluice->who.tenant_class == SLUICE_GPU_CLASS_PREEMPTIBLE)
		threshold = preemptible;
	if (sluice->node_occupied * 100 > sluice->node_pages * threshold)
		sluice_bpf_prefetch(sluice, sluice->node_first, sluice->node_pages);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("prefetch_tenant_tree",
	.page_prefetch = (void *)page_prefetch,
	.page_prefetch_iter = (void *)page_prefetch_iter);
