// SPDX-License-Identifier: GPL-2.0-only
/* Refused: of a version that the module does not speak. */
#include "../lib/policy.bpf.h"

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	return SLUICE_GPU_DEFAULT;
}

SEC(".struct_ops.link")
struct sluice_gpu_mem_ops mem_ops = {
	.page_prefetch = (void *)page_prefetch,
	.plain = {
		.version = SLUICE_GPU_ABI + 1,
		.gpu = SLUICE_GPU_ANY,
		.name = "refused",
	},
};
