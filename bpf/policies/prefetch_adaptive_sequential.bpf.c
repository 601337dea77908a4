// SPDX-License-Identifier: GPL-2.0-only
/*
 * Brings in a window behind the faulted page. A fault right behind the last window
 * doubles it, any other halves it, between `least` and `most` pages.
 */
#include "../lib/policy.bpf.h"

#define SLOTS 4096

SLUICE_TUNABLE(__u32, least, 16);
SLUICE_TUNABLE(__u32, most, 512);

struct window {
	/* Counted from the beginning of the address space. */
	__u64 first;
	__u64 next;
	__u32 pages;
};

/* By address space: a window goes on from block to block. */
SLUICE_ARRAY(windows, struct window, SLOTS);

SLUICE_HOOK(page_prefetch, struct sluice_gpu_prefetch_ctx)
{
	__u32 slot = sluice_slot(sluice->who.va_space, 0, SLOTS);
	struct window *window = bpf_map_lookup_elem(&windows, &slot);
	__u64 at = sluice->block * SLUICE_GPU_BLOCK_PAGES + sluice->page;
	__u32 left = sluice->max_first + sluice->max_pages - sluice->page, pages;

	if (!window)
		return SLUICE_GPU_DEFAULT;
	if (at >= window->first && at < window->next) {
		/* Of the same batch: the window has it already. */
		sluice_bpf_prefetch(sluice, sluice->page, 0);
		return SLUICE_GPU_DEFAULT;
	}
	pages = at == window->next ? window->pages * 2 : window->pages / 2;
	if (pages < least)
		pages = least;
	if (pages > most)
		pages = most;
	window->pages = pages;
	if (pages > left)
		pages = left;
	window->first = at;
	window->next = at + pages;
	sluice_bpf_prefetch(sluice, sluice->page, pages);
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("prefetch_adaptive_sequential", .page_prefetch = (void *)page_prefetch);
