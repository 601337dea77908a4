// SPDX-License-Identifier: GPL-2.0-only
/* Loads, and takes far too long. */
#include "../lib/policy.bpf.h"

/* Older headers do not have it; the part behind ___ is ignored. */
struct bpf_iter_num___own {
	__u64 opaque;
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num___own *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num___own *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num___own *it) __ksym;

SLUICE_ARRAY(sum, __u64, 1);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	struct bpf_iter_num___own it;
	__u32 zero = 0;
	__u64 *value = bpf_map_lookup_elem(&sum, &zero);

	bpf_iter_num_new(&it, 0, 100000);
	while (bpf_iter_num_next(&it)) {
		if (value)
			*value += 1;
	}
	bpf_iter_num_destroy(&it);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("wrong_slow", .page_prefetch = (void *)page_prefetch);
