// SPDX-License-Identifier: GPL-2.0-only
/* Refused: a loop that ends when the kernel says so, after eight million rounds. */
#include "../lib/policy.bpf.h"

SLUICE_ARRAY(sum, __u64, 1);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&sum, &zero);

	if (!value)
		return SLUICE_GPU_DEFAULT;
	for (;;) {
		/* may_goto out: older compilers do not know it by name. */
		asm volatile goto("1: .byte 0xe5, 0\n"
				  ".2byte (%l[out] - 1b) / 8 - 1\n"
				  ".4byte 0" : : : : out);
		*(volatile __u64 *)value += 1;
	}
out:
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
