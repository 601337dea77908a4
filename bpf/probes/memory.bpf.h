/* SPDX-License-Identifier: GPL-2.0-only */
/* What the probes on GPU memory managers share: the ring of events, masks of pages. */
#ifndef SLUICE_PROBE_MEMORY_BPF_H
#define SLUICE_PROBE_MEMORY_BPF_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

#include "memory.h"

#define PAGE_SHIFT 12
#define BLOCK_SHIFT 21
/* Words of a mask with a bit for each page of a block. */
#define MASK_WORDS 8

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

/* Events that found no room. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

struct mask {
	__u64 word[MASK_WORDS];
};

static __always_inline __u64 mask_pages(const struct mask *mask)
{
	__u64 pages = 0;
	int i;

	for (i = 0; i < MASK_WORDS; i++)
		pages += __builtin_popcountll(mask->word[i]);
	return pages;
}

/* The first page of a mask that is not empty. */
static __always_inline __u64 mask_first(const struct mask *mask)
{
	int i;

	for (i = 0; i < MASK_WORDS; i++) {
		__u64 word = mask->word[i];

		/* All below the lowest bit that is set, counted. */
		if (word)
			return i * 64 + __builtin_popcountll((word & -word) - 1);
	}
	return 0;
}

static __always_inline void tell(const struct sluice_memory_event *what)
{
	__u32 zero = 0;
	__u64 *count;

	if (!bpf_ringbuf_output(&events, (void *)what, sizeof(*what), 0))
		return;
	count = bpf_map_lookup_elem(&lost, &zero);
	if (count)
		*count += 1;
}

/* Tells of the pages of a mask, if there are any, for the block at that address. */
static __always_inline void tell_mask(struct sluice_memory_event *event, __u32 what,
				      const struct mask *mask, __u64 block)
{
	__u64 pages = mask_pages(mask);

	if (!pages)
		return;
	event->what = what;
	event->address = block + (mask_first(mask) << PAGE_SHIFT);
	event->bytes = pages << PAGE_SHIFT;
	tell(event);
}

#endif /* SLUICE_PROBE_MEMORY_BPF_H */
