// SPDX-License-Identifier: GPL-2.0-only
/*
 * For scenarios only: eviction without a GPU. Makes a pool of root chunks with the
 * driver's own structures and locks, each with a block of the caller's, and has the
 * driver's own functions fill, touch and evict them. Chunks hold nothing, and what is
 * evicted is marked, not copied.
 *
 * The parameter `sluice_pool` takes one order a write:
 *
 *	new N		a pool of N filled chunks, 0 the first
 *	touch I		another fault in the block of chunk I
 *	idle I		nothing of chunk I is mapped any more
 *	evict		a chunk is needed
 *	end		the pool goes
 *
 * It reads as the numbers of the chunks evicted since `new`.
 */
#include <linux/module.h>
#include <linux/slab.h>

#include "sluice_uvm.h"
#include "sluice_uvm_testing.h"
#include "uvm_gpu.h"
#include "uvm_va_range.h"

#define SLUICE_TESTING_MOST 64

struct sluice_testing_pool {
	/* Whose the blocks are; its address stands for an address space. */
	uvm_va_range_t range;
	uvm_gpu_t *gpu;
	u32 evicted;
	u32 victim[SLUICE_TESTING_MOST];
	u32 count;
	uvm_va_block_t block[] __counted_by(count);
};

/* Orders come one at a time: the kernel locks a module's parameters. */
static struct sluice_testing_pool *sluice_testing;

static void sluice_testing_free(struct sluice_testing_pool *pool)
{
	if (pool->gpu)
		kvfree(pool->gpu->pmm.root_chunks.array);
	kvfree(pool->gpu);
	kvfree(pool);
}

static void sluice_testing_lists(uvm_pmm_gpu_t *pmm)
{
	size_t type, size, zero;

	for (type = 0; type < ARRAY_SIZE(pmm->free_list); type++) {
		for (size = 0; size < ARRAY_SIZE(pmm->free_list[type]); size++) {
			for (zero = 0; zero < ARRAY_SIZE(pmm->free_list[type][size]); zero++)
				INIT_LIST_HEAD(&pmm->free_list[type][size][zero]);
		}
	}
	INIT_LIST_HEAD(&pmm->root_chunks.va_block_used);
	INIT_LIST_HEAD(&pmm->root_chunks.va_block_unused);
	uvm_spin_lock_init(&pmm->list_lock, UVM_LOCK_ORDER_LEAF);
	pmm->chunk_sizes[UVM_PMM_GPU_MEMORY_TYPE_USER] = UVM_CHUNK_SIZE_MAX;
}

static void sluice_testing_fill(struct sluice_testing_pool *pool, u32 index)
{
	uvm_pmm_gpu_t *pmm = &pool->gpu->pmm;
	uvm_gpu_chunk_t *chunk = &pmm->root_chunks.array[index].chunk;
	uvm_va_block_t *block = &pool->block[index];

	block->va_range = &pool->range;
	block->start = (u64)index * UVM_VA_BLOCK_SIZE;
	block->end = block->start + UVM_VA_BLOCK_SIZE - 1;
	INIT_LIST_HEAD(&chunk->list);
	chunk->type = UVM_PMM_GPU_MEMORY_TYPE_USER;
	chunk->state = UVM_PMM_GPU_CHUNK_STATE_ALLOCATED;
	chunk->address = (u64)index * UVM_CHUNK_SIZE_MAX;
	chunk->va_block = block;
	uvm_gpu_chunk_set_size(chunk, UVM_CHUNK_SIZE_MAX);
	uvm_spin_lock(&pmm->list_lock);
	sluice_uvm_testing_update(pmm, chunk);
	uvm_spin_unlock(&pmm->list_lock);
}

static int sluice_testing_new(u32 count)
{
	struct sluice_testing_pool *pool;
	uvm_pmm_gpu_t *pmm;
	u32 index;

	if (sluice_testing)
		return -EEXIST;
	if (!count || count > SLUICE_TESTING_MOST)
		return -EINVAL;
	pool = kvzalloc(struct_size(pool, block, count), GFP_KERNEL);
	if (!pool)
		return -ENOMEM;
	pool->count = count;
	pool->gpu = kvzalloc(sizeof(*pool->gpu), GFP_KERNEL);
	if (!pool->gpu)
		goto no_memory;
	pmm = &pool->gpu->pmm;
	pmm->root_chunks.count = count;
	pmm->root_chunks.array = kvcalloc(count, sizeof(*pmm->root_chunks.array), GFP_KERNEL);
	if (!pmm->root_chunks.array)
		goto no_memory;
	pool->gpu->id = uvm_gpu_id_from_index(0);
	pool->range.va_space = (uvm_va_space_t *)pool;
	sluice_testing_lists(pmm);
	/* As long as there is a pool the module stays. */
	__module_get(THIS_MODULE);
	sluice_uvm_add_owner(pool->range.va_space);
	sluice_uvm_add_gpu(pmm);
	for (index = 0; index < count; index++)
		sluice_testing_fill(pool, index);
	sluice_testing = pool;
	return 0;
no_memory:
	sluice_testing_free(pool);
	return -ENOMEM;
}

static void sluice_testing_end(struct sluice_testing_pool *pool)
{
	sluice_testing = NULL;
	sluice_uvm_remove_gpu(&pool->gpu->pmm);
	sluice_uvm_remove_owner(pool->range.va_space);
	sluice_testing_free(pool);
	module_put(THIS_MODULE);
}

static int sluice_testing_evict(struct sluice_testing_pool *pool)
{
	uvm_pmm_gpu_t *pmm = &pool->gpu->pmm;
	uvm_gpu_root_chunk_t *victim = sluice_uvm_testing_pick(pmm);

	if (!victim)
		return -ENOENT;
	pool->victim[pool->evicted++] = victim - pmm->root_chunks.array;
	return 0;
}

static int sluice_testing_set(const char *order, const struct kernel_param *param)
{
	struct sluice_testing_pool *pool = sluice_testing;
	uvm_gpu_chunk_t *chunk;
	u32 number = 0;

	if (sscanf(order, "new %u", &number) == 1)
		return sluice_testing_new(number);
	if (!pool)
		return -ENOENT;
	if (sysfs_streq(order, "evict"))
		return sluice_testing_evict(pool);
	if (sysfs_streq(order, "end")) {
		sluice_testing_end(pool);
		return 0;
	}
	if (sscanf(order, "touch %u", &number) != 1 && sscanf(order, "idle %u", &number) != 1)
		return -EINVAL;
	if (number >= pool->count)
		return -ERANGE;
	chunk = &pool->gpu->pmm.root_chunks.array[number].chunk;
	if (order[0] == 't')
		uvm_pmm_gpu_mark_root_chunk_used(&pool->gpu->pmm, chunk);
	else
		uvm_pmm_gpu_mark_root_chunk_unused(&pool->gpu->pmm, chunk);
	return 0;
}

static int sluice_testing_get(char *page, const struct kernel_param *param)
{
	struct sluice_testing_pool *pool = sluice_testing;
	int length = 0;
	u32 index;

	for (index = 0; pool && index < pool->evicted; index++)
		length += sysfs_emit_at(page, length, index ? " %u" : "%u", pool->victim[index]);
	return length + sysfs_emit_at(page, length, "\n");
}

static const struct kernel_param_ops sluice_testing_ops = {
	.set = sluice_testing_set,
	.get = sluice_testing_get,
};
module_param_cb(sluice_pool, &sluice_testing_ops, NULL, 0600);
