// SPDX-License-Identifier: GPL-2.0-only
/* Refused: iterators, whose rounds multiply and are not walked by the verifier. */
#include "../lib/policy.bpf.h"

/* Older headers do not have it; the part behind ___ is ignored. */
struct bpf_iter_num___own {
	__u64 opaque;
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num___own *it, int start, int end) __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num___own *it) __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num___own *it) __ksym;

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	struct bpf_iter_num___own outer, inner;

	bpf_iter_num_new(&outer, 0, 8000000);
	while (bpf_iter_num_next(&outer)) {
		bpf_iter_num_new(&inner, 0, 8000000);
		while (bpf_iter_num_next(&inner))
			;
		bpf_iter_num_destroy(&inner);
	}
	bpf_iter_num_destroy(&outer);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .page_prefetch = (void *)page_prefetch);
