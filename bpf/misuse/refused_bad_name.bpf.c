// SPDX-License-Identifier: GPL-2.0-only
/* Refused: a name that is none. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("../name", .page_prefetch = (void *)page_prefetch);
