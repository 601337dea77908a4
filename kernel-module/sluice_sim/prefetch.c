// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is brought in beside a faulted page. The native rule is that of UVM, as publicly
 * described: over a block's pages stands a binary tree; of the nodes above the faulted
 * page the largest one is taken of whose pages more than 51 % are on the GPU already or
 * wanted now. A wanted page counts as the 64 KiB around it.
 */
#include "sim.h"

static u32 sim_count(const unsigned long *bits, struct sluice_gpu_region region)
{
	u32 page, count = 0;

	for (page = region.first; page < region.first + region.pages; page++)
		count += test_bit(page, bits);
	return count;
}

static u32 sim_occupied(const void *data, struct sluice_gpu_region region)
{
	const struct sim_block *block = data;

	return sim_count(block->occupied, region);
}

static struct sluice_gpu_region sim_clip(const struct sim_block *block, u32 first, u32 pages)
{
	u32 from = max(first, block->valid.first);
	u32 to = min(first + pages, block->valid.first + block->valid.pages);

	return (struct sluice_gpu_region){ .first = from, .pages = to - from };
}

static struct sluice_gpu_region sim_native(const struct sim_block *block, u32 page)
{
	struct sluice_gpu_region best = { .first = page, .pages = 0 };
	u32 size;

	for (size = 1; size <= SIM_BLOCK_PAGES; size *= 2) {
		struct sluice_gpu_region node = sim_clip(block, page & ~(size - 1), size);

		if (sim_count(block->occupied, node) * 100 > node.pages * SIM_THRESHOLD)
			best = node;
	}
	return best;
}

static struct sluice_gpu_region sim_ask(struct sim *sim, const struct sim_block *block, u32 page,
					u32 resident, u32 faulted)
{
	const struct sluice_gpu_prefetch args = {
		.owner = &block->tenant->owner,
		.block = block->number,
		.now_ns = sim_now(sim),
		.page = page,
		.max = block->valid,
		.resident = resident,
		.faulted = faulted,
		.threshold = SIM_THRESHOLD,
		.occupied = sim_occupied,
		.data = block,
	};
	struct sluice_gpu_region region;

	if (sluice_gpu_has(SLUICE_GPU_PAGE_PREFETCH) &&
	    sluice_gpu_page_prefetch(sim->manager, &args, &region))
		return region;
	return sim_native(block, page);
}

/* Adds to the mask, which holds the faulted pages, what is to come in with them. */
void sim_prefetch(struct sim *sim, struct sim_block *block, unsigned long *mask)
{
	u32 resident = bitmap_weight(block->resident, SIM_BLOCK_PAGES);
	u32 faulted = bitmap_weight(block->faulted, SIM_BLOCK_PAGES);
	u32 page;

	bitmap_copy(block->occupied, block->resident, SIM_BLOCK_PAGES);
	for_each_set_bit(page, block->faulted, SIM_BLOCK_PAGES) {
		struct sluice_gpu_region granule =
			sim_clip(block, page & ~(SIM_GRANULE_PAGES - 1), SIM_GRANULE_PAGES);

		bitmap_set(block->occupied, granule.first, granule.pages);
	}
	for_each_set_bit(page, block->faulted, SIM_BLOCK_PAGES) {
		struct sluice_gpu_region region = sim_ask(sim, block, page, resident, faulted);

		bitmap_set(mask, region.first, region.pages);
		/* Up to the block's end: the pages that are left would add nothing. */
		if (region.pages &&
		    region.first + region.pages == block->valid.first + block->valid.pages)
			break;
	}
}
