// SPDX-License-Identifier: GPL-2.0-only
/* Follows strides: see lib/stride.bpf.h. */
#include "../lib/stride.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	stride_prefetch(sluice);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("prefetch_stride", .page_prefetch = (void *)page_prefetch);
