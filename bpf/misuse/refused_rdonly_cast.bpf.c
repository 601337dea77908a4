// SPDX-License-Identifier: GPL-2.0-only
/* Refused: reads any memory of the kernel through a cast that the kernel offers. */
#include "../lib/policy.bpf.h"
#include <bpf/bpf_core_read.h>

struct list_head___own {
	struct list_head___own *next;
} __attribute__((preserve_access_index));

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	struct list_head___own *any = bpf_rdonly_cast((void *)bpf_ktime_get_ns(),
			bpf_core_type_id_kernel(struct list_head___own));

	return any->next ? SLUICE_GPU_DEFAULT : SLUICE_GPU_ITERATE;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
