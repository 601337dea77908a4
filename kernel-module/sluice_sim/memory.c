// SPDX-License-Identifier: GPL-2.0-only
/*
 * The memory manager: blocks of tenants, the chunks they are given, the batches of
 * faults that bring pages in, and the choice of what has to go.
 *
 * A chunk is on the list `used` while pages of its block are on the GPU, on `unused`
 * when all were taken back, else on `free`. Natively the head of `unused`, then of `used`
 * goes first, and a fault in a block moves its chunk to the tail of `used`.
 */
#include <linux/math64.h>
#include <linux/slab.h>

#include "sim.h"

int sim_memory_init(struct sim *sim, u32 chunks)
{
	u32 i;

	sim->chunks = kvcalloc(chunks, sizeof(*sim->chunks), GFP_KERNEL);
	if (!sim->chunks)
		return -ENOMEM;
	sim->chunk_count = chunks;
	for (i = 0; i < chunks; i++) {
		sim->chunks[i].index = i;
		list_add_tail(&sim->chunks[i].node, &sim->free);
	}
	return 0;
}

void sim_memory_exit(struct sim *sim)
{
	struct sim_block *block;
	unsigned long number;
	int i;

	for (i = 0; i < SLUICE_SIM_TENANTS; i++) {
		xa_for_each(&sim->tenant[i].blocks, number, block)
			kfree(block);
		xa_destroy(&sim->tenant[i].blocks);
	}
	kvfree(sim->chunks);
}

static struct sluice_gpu_block sim_describe(struct sim *sim, const struct sim_chunk *chunk)
{
	return (struct sluice_gpu_block){
		.owner = &chunk->block->tenant->owner,
		.object = (void *)chunk,
		.block = chunk->block->number,
		.generation = chunk->generation,
		.now_ns = sim_now(sim),
		.chunk = chunk->index,
		.chunks = sim->chunk_count,
		.list = chunk->list,
		.resident = bitmap_weight(chunk->block->resident, SIM_BLOCK_PAGES),
	};
}

/* Puts a chunk at a place. With list_lock held. */
static void sim_move(struct sim *sim, struct sim_chunk *chunk, enum sluice_gpu_list list,
		     enum sluice_gpu_position position)
{
	struct list_head *to = list == SLUICE_GPU_LIST_USED   ? &sim->used :
			       list == SLUICE_GPU_LIST_UNUSED ? &sim->unused :
								&sim->free;

	sim->used_count -= chunk->list == SLUICE_GPU_LIST_USED;
	sim->unused_count -= chunk->list == SLUICE_GPU_LIST_UNUSED;
	chunk->list = list;
	sim->used_count += chunk->list == SLUICE_GPU_LIST_USED;
	sim->unused_count += chunk->list == SLUICE_GPU_LIST_UNUSED;
	if (position == SLUICE_GPU_HEAD)
		list_move(&chunk->node, to);
	else
		list_move_tail(&chunk->node, to);
}

static struct sim *sim_of(const struct sim_chunk *chunk)
{
	struct sim_tenant *tenant = chunk->block->tenant;

	/* Tenants are an array inside the simulation; their space id holds their place. */
	return container_of(tenant - (u32)(tenant->owner.id.va_space - 1), struct sim, tenant[0]);
}

/* The callback of block hooks, which are called with list_lock held. */
int sim_reorder(void *object, enum sluice_gpu_list list, enum sluice_gpu_position position)
{
	struct sim_chunk *chunk = object;
	struct sim *sim;
	struct list_head *head;

	if (!chunk->block || chunk->list == SLUICE_GPU_LIST_NONE)
		return -ESTALE;
	sim = sim_of(chunk);
	lockdep_assert_held(&sim->list_lock);
	head = list == SLUICE_GPU_LIST_USED ? &sim->used : &sim->unused;
	if (chunk->list == list && (position == SLUICE_GPU_HEAD ?
					    list_is_first(&chunk->node, head) :
					    list_is_last(&chunk->node, head)))
		return -EALREADY;
	sim_move(sim, chunk, list, position);
	return 0;
}

static u32 sim_candidates(struct sim *sim, struct list_head *list, struct sim_chunk **chunk,
			  u32 count)
{
	struct sim_chunk *next;

	list_for_each_entry(next, list, node) {
		if (count == SLUICE_GPU_CANDIDATES)
			break;
		if (next->pinned)
			continue;
		sim->candidate[count] = (struct sluice_gpu_candidate){
			.who = next->block->tenant->owner.id,
			.cgroup = next->block->tenant->owner.cgroup,
			.block = next->block->number,
			.generation = next->generation,
			.chunk = next->index,
			.list = next->list,
			.resident = bitmap_weight(next->block->resident, SIM_BLOCK_PAGES),
		};
		chunk[count++] = next;
	}
	return count;
}

static struct sim_chunk *sim_first_unpinned(struct list_head *list)
{
	struct sim_chunk *chunk;

	list_for_each_entry(chunk, list, node) {
		if (!chunk->pinned)
			return chunk;
	}
	return NULL;
}

/* Gives the chunk to evict for an owner. With list_lock held. */
static struct sim_chunk *sim_victim(struct sim *sim, const struct sim_tenant *tenant)
{
	struct sim_chunk *chunk[SLUICE_GPU_CANDIDATES];
	struct sluice_gpu_evict args = {
		.owner = &tenant->owner,
		.candidate = sim->candidate,
		.now_ns = sim_now(sim),
		.chunks = sim->chunk_count,
		.used = sim->used_count,
		.unused = sim->unused_count,
	};
	int chosen = -1;

	if (sluice_gpu_has(SLUICE_GPU_EVICT_PREPARE)) {
		args.candidates = sim_candidates(sim, &sim->unused, chunk, 0);
		args.candidates = sim_candidates(sim, &sim->used, chunk, args.candidates);
		chosen = sluice_gpu_evict_prepare(sim->manager, &args);
	}
	if (chosen >= 0)
		return chunk[chosen];
	return sim_first_unpinned(&sim->unused) ?: sim_first_unpinned(&sim->used);
}

static u64 sim_copy_ns(const struct sim *sim, u64 pages)
{
	return div64_u64(pages * SIM_PAGE_BYTES * NSEC_PER_SEC, sim->link_bytes_per_s);
}

/* Takes a block's memory: what the GPU wrote is copied back. Gives the time it takes. */
static u64 sim_empty(struct sim *sim, struct sim_block *block)
{
	u32 dirty = bitmap_weight(block->dirty, SIM_BLOCK_PAGES);

	block->tenant->pages_out += dirty;
	bitmap_zero(block->resident, SIM_BLOCK_PAGES);
	bitmap_zero(block->dirty, SIM_BLOCK_PAGES);
	block->chunk = NULL;
	return sim_copy_ns(sim, dirty);
}

/*
 * Takes a block's memory for another one. Probes look at it (bpf/probes/sim.bpf.c), so it
 * must be a function with these arguments in the end.
 */
noinline u64 sim_evict(struct sim *sim, struct sim_block *block)
{
	sim->evictions++;
	block->tenant->evictions++;
	return SIM_EVICT_NS + sim_empty(sim, block);
}

/* Gives a block a chunk, pinned. Gives the time it takes. */
static u64 sim_take_chunk(struct sim *sim, struct sim_block *block)
{
	struct sim_chunk *chunk;
	u64 cost = 0;

	spin_lock(&sim->list_lock);
	chunk = list_first_entry_or_null(&sim->free, struct sim_chunk, node);
	if (!chunk) {
		/* Never NULL: nothing is pinned now, and there is at least one chunk. */
		chunk = sim_victim(sim, block->tenant);
		cost = sim_evict(sim, chunk->block);
	}
	chunk->block = block;
	chunk->generation++;
	chunk->pinned = true;
	block->chunk = chunk;
	sim_move(sim, chunk, SLUICE_GPU_LIST_USED, SLUICE_GPU_TAIL);
	spin_unlock(&sim->list_lock);
	return cost;
}

/* After a block was served: its chunk's place in the lists. */
static void sim_place(struct sim *sim, struct sim_block *block, bool is_new)
{
	struct sluice_gpu_block args;

	spin_lock(&sim->list_lock);
	block->chunk->pinned = false;
	args = sim_describe(sim, block->chunk);
	if (is_new) {
		sluice_gpu_block_activate(sim->manager, &args);
	} else if (!sluice_gpu_has(SLUICE_GPU_BLOCK_ACCESS) ||
		   !sluice_gpu_block_access(sim->manager, &args)) {
		sim_move(sim, block->chunk, SLUICE_GPU_LIST_USED, SLUICE_GPU_TAIL);
	}
	spin_unlock(&sim->list_lock);
}

static void sim_serve_block(struct sim *sim, struct sim_block *block)
{
	DECLARE_BITMAP(mask, SIM_BLOCK_PAGES);
	struct sim_tenant *tenant = block->tenant;
	bool is_new = !block->chunk;
	u64 cost = SIM_BLOCK_NS;
	u32 pages;

	if (is_new)
		cost += sim_take_chunk(sim, block);
	else
		block->chunk->pinned = true;
	bitmap_copy(mask, block->faulted, SIM_BLOCK_PAGES);
	sim_prefetch(sim, block, mask);
	bitmap_andnot(mask, mask, block->resident, SIM_BLOCK_PAGES);
	pages = bitmap_weight(mask, SIM_BLOCK_PAGES);
	bitmap_or(block->resident, block->resident, mask, SIM_BLOCK_PAGES);
	bitmap_or(block->dirty, block->dirty, block->writes, SIM_BLOCK_PAGES);
	cost += sim_copy_ns(sim, pages);

	tenant->faults += bitmap_weight(block->faulted, SIM_BLOCK_PAGES);
	tenant->pages_in += pages;
	tenant->stall_ns += cost;
	sim->stall_ns += cost;
	bitmap_zero(block->faulted, SIM_BLOCK_PAGES);
	bitmap_zero(block->writes, SIM_BLOCK_PAGES);
	sim_place(sim, block, is_new);
}

/* Serves the faults that are pending. */
void sim_serve_batch(struct sim *sim)
{
	struct sim_block *block, *next;

	if (list_empty(&sim->batch))
		return;
	list_for_each_entry_safe(block, next, &sim->batch, batch) {
		list_del_init(&block->batch);
		sim_serve_block(sim, block);
	}
	sim->batches++;
	sim->stall_ns += SIM_BATCH_NS;
	sluice_gpu_report_faults(sim->manager, sim->batch_faults, sim_now(sim));
	sim->batch_faults = 0;
}

static bool sim_range_valid(u64 first, u32 pages)
{
	return pages && first < 1ULL << 52;
}

int sim_alloc(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages)
{
	u64 end = first + pages, page = first;

	if (!sim_range_valid(first, pages))
		return -EINVAL;
	while (page < end) {
		u64 stop = min(round_down(page, SIM_BLOCK_PAGES) + SIM_BLOCK_PAGES, end);
		struct sim_block *block = kzalloc(sizeof(*block), GFP_KERNEL);
		int err;

		if (!block)
			return -ENOMEM;
		block->tenant = tenant;
		block->number = page / SIM_BLOCK_PAGES;
		block->valid.first = page % SIM_BLOCK_PAGES;
		block->valid.pages = stop - page;
		INIT_LIST_HEAD(&block->batch);
		err = xa_insert(&tenant->blocks, block->number, block, GFP_KERNEL);
		if (err) {
			kfree(block);
			return err == -EBUSY ? -EEXIST : err;
		}
		page = stop;
	}
	return 0;
}

int sim_free(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages)
{
	u64 number, end = first + pages;

	if (!sim_range_valid(first, pages))
		return -EINVAL;
	for (number = first / SIM_BLOCK_PAGES; number * SIM_BLOCK_PAGES < end; number++) {
		struct sim_block *block = xa_erase(&tenant->blocks, number);

		if (!block)
			return -EFAULT;
		if (block->chunk) {
			struct sim_chunk *chunk = block->chunk;

			spin_lock(&sim->list_lock);
			sim_empty(sim, block);
			sim_move(sim, chunk, SLUICE_GPU_LIST_NONE, SLUICE_GPU_TAIL);
			chunk->block = NULL;
			spin_unlock(&sim->list_lock);
		}
		kfree(block);
	}
	return 0;
}

static struct sim_block *sim_find(struct sim_tenant *tenant, u64 page)
{
	struct sim_block *block = xa_load(&tenant->blocks, page / SIM_BLOCK_PAGES);
	u32 inside = page % SIM_BLOCK_PAGES;

	if (!block || inside < block->valid.first ||
	    inside >= block->valid.first + block->valid.pages)
		return NULL;
	return block;
}

int sim_access(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages, bool write)
{
	u64 page;

	if (!sim_range_valid(first, pages))
		return -EINVAL;
	for (page = first; page < first + pages; page++) {
		struct sim_block *block = sim_find(tenant, page);
		u32 inside = page % SIM_BLOCK_PAGES;

		if (!block)
			return -EFAULT;
		if (test_bit(inside, block->resident)) {
			tenant->hits++;
			if (write)
				set_bit(inside, block->dirty);
			continue;
		}
		if (write)
			set_bit(inside, block->writes);
		if (test_and_set_bit(inside, block->faulted))
			continue;
		if (list_empty(&block->batch))
			list_add_tail(&block->batch, &sim->batch);
		if (++sim->batch_faults == SIM_BATCH_FAULTS)
			sim_serve_batch(sim);
	}
	return 0;
}

int sim_take(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages)
{
	u64 page;

	if (!sim_range_valid(first, pages))
		return -EINVAL;
	for (page = first; page < first + pages; page++) {
		struct sim_block *block = sim_find(tenant, page);
		u32 inside = page % SIM_BLOCK_PAGES;

		if (!block)
			return -EFAULT;
		if (!test_and_clear_bit(inside, block->resident))
			continue;
		tenant->pages_out++;
		sim->stall_ns += sim_copy_ns(sim, 1);
		clear_bit(inside, block->dirty);
		if (bitmap_empty(block->resident, SIM_BLOCK_PAGES)) {
			spin_lock(&sim->list_lock);
			sim_move(sim, block->chunk, SLUICE_GPU_LIST_UNUSED, SLUICE_GPU_TAIL);
			spin_unlock(&sim->list_lock);
		}
	}
	return 0;
}
