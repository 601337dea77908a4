/* SPDX-License-Identifier: GPL-2.0-only */
/* Finds strides in the faults of each block. */
#ifndef SLUICE_STRIDE_BPF_H
#define SLUICE_STRIDE_BPF_H

#include "policy.bpf.h"

#define STRIDE_SLOTS 4096

/* How many equal steps make a stride. */
SLUICE_TUNABLE(__u32, confidence, 2);
/* How many steps ahead are brought in. */
SLUICE_TUNABLE(__u32, ahead, 8);

struct stride {
	__u64 key;
	__s32 last;
	__s32 step;
	__u32 seen;
};

SLUICE_ARRAY(strides, struct stride, STRIDE_SLOTS);

/*
 * Notes a fault; asks for the pages ahead if the block's faults have kept a step. Where
 * they have not it asks for nothing: unsure is not the same as none.
 */
static __always_inline void stride_prefetch(struct sluice_gpu_prefetch_ctx *sluice)
{
	__u64 key = sluice_key(sluice->who.va_space, sluice->block);
	__u32 slot = sluice_slot(sluice->who.va_space, sluice->block, STRIDE_SLOTS);
	struct stride *stride = bpf_map_lookup_elem(&strides, &slot);
	__s32 page = sluice->page, step, first, end, low, high;

	if (!stride)
		return;
	step = page - stride->last;
	if (stride->key != key) {
		stride->key = key;
		stride->seen = 0;
		stride->step = 0;
	} else if (step && step == stride->step) {
		stride->seen += 1;
	} else {
		stride->seen = 0;
		stride->step = step;
	}
	stride->last = page;
	if (stride->seen < confidence)
		return;
	first = step > 0 ? page : page + step * (__s32)ahead;
	end = step > 0 ? page + step * (__s32)ahead + 1 : page + 1;
	low = sluice->max_first;
	high = sluice->max_first + sluice->max_pages;
	if (first < low)
		first = low;
	if (end > high)
		end = high;
	if (first >= end)
		return;
	sluice_bpf_prefetch(sluice, first, end - first);
	/* The next fault is behind what was brought in. */
	stride->last = step > 0 ? page + step * (__s32)ahead : first;
}

#endif /* SLUICE_STRIDE_BPF_H */
