// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and returns what no hook knows. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return 99;
}

SLUICE_MEM_POLICY("wrong_verdict", .page_prefetch = (void *)page_prefetch);
