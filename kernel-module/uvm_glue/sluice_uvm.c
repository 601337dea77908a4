// SPDX-License-Identifier: GPL-2.0-only
/*
 * nvidia-uvm as a memory manager of sluice_gpu. The driver's own lists and locks stay what
 * they are; this file only describes them to the hooks.
 *
 * What is read of a chunk's block under the lists' lock is safe to read: a block gives its
 * chunks back, which clears the link under that lock, before it lets go of its address
 * range and of its GPU's state. Chunks that are split belong to several blocks; no policy
 * is asked about them. An address space is never looked into here, its address is a key.
 *
 * Nothing here waits in a hook. What hooks find is freed after a grace period.
 */
#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "sluice/sluice_gpu.h"
#include "sluice/shape.h"
#include "sluice_uvm.h"
#include "uvm_gpu.h"

/* How much of a list is looked through for candidates. */
#define SLUICE_UVM_LOOK 64

#ifdef SLUICE_UVM_ALLOC_LIST
#define SLUICE_UVM_USED(pmm) (&(pmm)->root_chunks.alloc_list[UVM_PMM_ALLOC_LIST_USED])
#define SLUICE_UVM_UNUSED(pmm) (&(pmm)->root_chunks.alloc_list[UVM_PMM_ALLOC_LIST_UNUSED])
#else
#define SLUICE_UVM_USED(pmm) (&(pmm)->root_chunks.va_block_used)
#define SLUICE_UVM_UNUSED(pmm) (&(pmm)->root_chunks.va_block_unused)
#endif

/* An address space: whose it is. */
struct sluice_uvm_owner {
	struct hlist_node node;
	struct rcu_head rcu;
	const uvm_va_space_t *va_space;
	struct sluice_gpu_owner owner;
};

struct sluice_uvm_gpu {
	struct sluice_gpu_manager *manager;
	/* Who asks for a victim: the driver does not say. */
	struct sluice_gpu_owner nobody;
	/* The next two with the lists' lock held. */
	u64 *generation;
	struct sluice_gpu_candidate candidate[SLUICE_GPU_CANDIDATES];
};

/* What a block hook hands to sluice_uvm_reorder. */
struct sluice_uvm_place {
	uvm_pmm_gpu_t *pmm;
	uvm_gpu_chunk_t *chunk;
};

DEFINE_STATIC_KEY_FALSE(sluice_uvm_connected);

/* All that is called of sluice_gpu. */
#define SLUICE_UVM_SYMBOLS(with)              \
	with(sluice_gpu_register_manager)     \
	with(sluice_gpu_unregister_manager)   \
	with(sluice_gpu_report_faults)        \
	with(sluice_gpu_page_prefetch)        \
	with(sluice_gpu_block_activate)       \
	with(sluice_gpu_block_access)         \
	with(sluice_gpu_evict_prepare)        \
	with(sluice_gpu_keys)
#define SLUICE_UVM_MEMBER(symbol) typeof(&symbol) symbol;
static struct {
	SLUICE_UVM_SYMBOLS(SLUICE_UVM_MEMBER)
} sluice_uvm;

static DEFINE_HASHTABLE(sluice_uvm_owners, 8);
static DEFINE_SPINLOCK(sluice_uvm_owners_lock);
static u64 sluice_uvm_last_owner;
/* The processors', for pages that come back to main memory. */
static struct sluice_gpu_manager *sluice_uvm_host;
static struct sluice_uvm_gpu __rcu *sluice_uvm_gpus[UVM_ID_MAX_GPUS];
/* Orders the readings of the clock that faults are reported with. */
static DEFINE_SPINLOCK(sluice_uvm_clock_lock);

static bool sluice_uvm_asks(enum sluice_gpu_hook hook)
{
	return static_key_enabled(&(*sluice_uvm.sluice_gpu_keys)[hook]);
}

static int sluice_uvm_reorder(void *object, enum sluice_gpu_list list,
			      enum sluice_gpu_position position)
{
	const struct sluice_uvm_place *place = object;
	struct list_head *node = &place->chunk->list;
	struct list_head *head = list == SLUICE_GPU_LIST_USED ? SLUICE_UVM_USED(place->pmm) :
								SLUICE_UVM_UNUSED(place->pmm);

	uvm_assert_spinlock_locked(&place->pmm->list_lock);
	if (list_empty(node))
		return -ESTALE;
	if (position == SLUICE_GPU_HEAD ? list_is_first(node, head) : list_is_last(node, head))
		return -EALREADY;
	if (position == SLUICE_GPU_HEAD)
		list_move(node, head);
	else
		list_move_tail(node, head);
	return 0;
}

static const struct sluice_gpu_manager_ops sluice_uvm_ops = {
	.owner = THIS_MODULE,
	.name = "nvidia-uvm",
	.reorder = sluice_uvm_reorder,
};

static void sluice_uvm_let_go(void)
{
#define SLUICE_UVM_PUT(symbol)                  \
	do {                                    \
		if (sluice_uvm.symbol)          \
			symbol_put(symbol);     \
		sluice_uvm.symbol = NULL;       \
	} while (0);
	SLUICE_UVM_SYMBOLS(SLUICE_UVM_PUT)
}

void sluice_uvm_connect(void)
{
	bool complete = true;

#define SLUICE_UVM_GET(symbol) complete &= !!(sluice_uvm.symbol = symbol_get(symbol));
	SLUICE_UVM_SYMBOLS(SLUICE_UVM_GET)
	if (!complete) {
		sluice_uvm_let_go();
		pr_info("sluice: sluice_gpu is not loaded: no policies\n");
		return;
	}
	sluice_uvm_host = sluice_uvm.sluice_gpu_register_manager(&sluice_uvm_ops, SLUICE_GPU_HOST,
								 NULL);
	if (IS_ERR(sluice_uvm_host)) {
		pr_warn("sluice: sluice_gpu refuses this driver (%ld): no policies\n",
			PTR_ERR(sluice_uvm_host));
		sluice_uvm_let_go();
		return;
	}
	static_branch_enable(&sluice_uvm_connected);
	pr_info("sluice: policies of sluice_gpu are asked\n");
}

void sluice_uvm_disconnect(void)
{
	if (!static_key_enabled(&sluice_uvm_connected))
		return;
	static_branch_disable(&sluice_uvm_connected);
	/* Owners are freed by code of this module. */
	rcu_barrier();
	sluice_uvm.sluice_gpu_unregister_manager(sluice_uvm_host);
	sluice_uvm_let_go();
}

void sluice_uvm_do_add_owner(const uvm_va_space_t *va_space)
{
	struct sluice_uvm_owner *entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	struct cgroup *cgroup;

	/* Without an owner no policy is asked. */
	if (!entry)
		return;
	rcu_read_lock();
	cgroup = task_dfl_cgroup(current);
	if (!cgroup_tryget(cgroup))
		cgroup = NULL;
	rcu_read_unlock();
	if (!cgroup) {
		kfree(entry);
		return;
	}
	entry->va_space = va_space;
	entry->owner.cgroup = cgroup;
	entry->owner.id.cgroup_id = cgroup_id(cgroup);
	entry->owner.id.owner_tgid = task_tgid_nr(current);
	spin_lock(&sluice_uvm_owners_lock);
	entry->owner.id.va_space = ++sluice_uvm_last_owner;
	hash_add_rcu(sluice_uvm_owners, &entry->node, (unsigned long)va_space);
	spin_unlock(&sluice_uvm_owners_lock);
}

/* With the RCU read lock, or the owners' lock. */
static struct sluice_uvm_owner *sluice_uvm_find(const uvm_va_space_t *va_space)
{
	struct sluice_uvm_owner *entry;

	hash_for_each_possible_rcu(sluice_uvm_owners, entry, node, (unsigned long)va_space,
				   lockdep_is_held(&sluice_uvm_owners_lock)) {
		if (entry->va_space == va_space)
			return entry;
	}
	return NULL;
}

static void sluice_uvm_free_owner(struct rcu_head *rcu)
{
	struct sluice_uvm_owner *entry = container_of(rcu, struct sluice_uvm_owner, rcu);

	cgroup_put(entry->owner.cgroup);
	kfree(entry);
}

void sluice_uvm_do_remove_owner(const uvm_va_space_t *va_space)
{
	struct sluice_uvm_owner *entry;

	spin_lock(&sluice_uvm_owners_lock);
	entry = sluice_uvm_find(va_space);
	if (entry)
		hash_del_rcu(&entry->node);
	spin_unlock(&sluice_uvm_owners_lock);
	if (entry)
		call_rcu(&entry->rcu, sluice_uvm_free_owner);
}

void sluice_uvm_do_add_gpu(uvm_pmm_gpu_t *pmm)
{
	u32 index = uvm_id_gpu_index(uvm_pmm_to_gpu(pmm)->id);
	struct sluice_uvm_gpu *gpu = kvzalloc(sizeof(*gpu), GFP_KERNEL);
	long err = -ENOMEM;

	if (!gpu)
		goto refused;
	gpu->generation = kvcalloc(pmm->root_chunks.count, sizeof(*gpu->generation), GFP_KERNEL);
	if (!gpu->generation)
		goto refused;
	gpu->manager = sluice_uvm.sluice_gpu_register_manager(&sluice_uvm_ops, index, gpu);
	if (IS_ERR(gpu->manager)) {
		err = PTR_ERR(gpu->manager);
		goto refused;
	}
	gpu->nobody.id.gpu = index;
	gpu->nobody.cgroup = &cgrp_dfl_root.cgrp;
	gpu->nobody.id.cgroup_id = cgroup_id(gpu->nobody.cgroup);
	rcu_assign_pointer(sluice_uvm_gpus[index], gpu);
	return;
refused:
	pr_warn("sluice: no policies for GPU %u (%ld)\n", index, err);
	if (gpu)
		kvfree(gpu->generation);
	kvfree(gpu);
}

void sluice_uvm_do_remove_gpu(uvm_pmm_gpu_t *pmm)
{
	u32 index = uvm_id_gpu_index(uvm_pmm_to_gpu(pmm)->id);
	/* The driver adds and removes GPUs under one lock. */
	struct sluice_uvm_gpu *gpu = rcu_replace_pointer(sluice_uvm_gpus[index], NULL, true);

	if (!gpu)
		return;
	/* The core may be asking for memory back until its callbacks are taken away. */
	synchronize_rcu();
	sluice_uvm.sluice_gpu_unregister_manager(gpu->manager);
	kvfree(gpu->generation);
	kvfree(gpu);
}

static struct sluice_uvm_gpu *sluice_uvm_gpu_of(uvm_pmm_gpu_t *pmm)
{
	return rcu_dereference(sluice_uvm_gpus[uvm_id_gpu_index(uvm_pmm_to_gpu(pmm)->id)]);
}

/* Gives who is in charge of a processor's memory. With the RCU read lock held. */
static struct sluice_gpu_manager *sluice_uvm_manager(uvm_processor_id_t processor, u32 *number)
{
	struct sluice_uvm_gpu *gpu;

	if (UVM_ID_IS_CPU(processor)) {
		*number = SLUICE_GPU_HOST;
		return sluice_uvm_host;
	}
	*number = uvm_id_gpu_index(processor);
	gpu = rcu_dereference(sluice_uvm_gpus[*number]);
	return gpu ? gpu->manager : NULL;
}

/* Gives whose block it is, as `number`'s hooks are told. With the RCU read lock held. */
static bool sluice_uvm_owner_of(uvm_va_block_t *block, u32 number, struct sluice_gpu_owner *owner)
{
	const uvm_va_space_t *va_space = uvm_va_block_get_va_space_maybe_dead(block);
	const struct sluice_uvm_owner *entry = va_space ? sluice_uvm_find(va_space) : NULL;

	if (!entry)
		return false;
	*owner = entry->owner;
	owner->id.gpu = number;
	return true;
}

void sluice_uvm_do_report_faults(uvm_processor_id_t processor, u32 faults)
{
	struct sluice_gpu_manager *manager;
	u32 number;

	rcu_read_lock();
	manager = sluice_uvm_manager(processor, &number);
	if (manager) {
		spin_lock(&sluice_uvm_clock_lock);
		sluice_uvm.sluice_gpu_report_faults(manager, faults, ktime_get_ns());
		spin_unlock(&sluice_uvm_clock_lock);
	}
	rcu_read_unlock();
}

struct sluice_uvm_tree {
	const uvm_perf_prefetch_bitmap_tree_t *tree;
	u32 first;
};

static u32 sluice_uvm_occupied(const void *data, struct sluice_gpu_region region)
{
	const struct sluice_uvm_tree *in = data;
	/* The tree counts from the first page that may come in. */
	u32 first = region.first - in->first + in->tree->offset;

	return uvm_page_mask_region_weight(&in->tree->pages,
					   uvm_va_block_region(first, first + region.pages));
}

/* Pages of a block on a processor. */
static u32 sluice_uvm_resident(uvm_va_block_t *block, uvm_processor_id_t processor)
{
	uvm_va_block_gpu_state_t *state;

	if (UVM_ID_IS_CPU(processor))
		return bitmap_weight(block->cpu.resident.bitmap, PAGES_PER_UVM_VA_BLOCK);
	state = block->gpus[uvm_id_gpu_index(processor)];
	return state ? bitmap_weight(state->resident.bitmap, PAGES_PER_UVM_VA_BLOCK) : 0;
}

void sluice_uvm_do_prefetch(uvm_va_block_t *block, uvm_processor_id_t processor,
			    const uvm_page_mask_t *faulted, uvm_page_index_t page,
			    const uvm_perf_prefetch_bitmap_tree_t *tree, uvm_va_block_region_t max,
			    u32 threshold, uvm_va_block_region_t *region)
{
	const struct sluice_uvm_tree in = { .tree = tree, .first = max.first };
	struct sluice_gpu_owner owner;
	struct sluice_gpu_manager *manager;
	struct sluice_gpu_region wanted;
	struct sluice_gpu_prefetch args = {
		.owner = &owner,
		.page = page,
		.max = { .first = max.first, .pages = max.outer - max.first },
		.threshold = threshold,
		.occupied = sluice_uvm_occupied,
		.data = &in,
	};
	u32 number;

	if (!block || !sluice_uvm_asks(SLUICE_GPU_PAGE_PREFETCH))
		return;
	rcu_read_lock();
	manager = sluice_uvm_manager(processor, &number);
	if (manager && sluice_uvm_owner_of(block, number, &owner)) {
		args.block = block->start / UVM_VA_BLOCK_SIZE;
		args.now_ns = ktime_get_ns();
		args.resident = sluice_uvm_resident(block, processor);
		args.faulted = bitmap_weight(faulted->bitmap, PAGES_PER_UVM_VA_BLOCK);
		if (sluice_uvm.sluice_gpu_page_prefetch(manager, &args, &wanted))
			*region = wanted.pages ?
					  uvm_va_block_region(wanted.first,
							      wanted.first + wanted.pages) :
					  uvm_va_block_region(0, 0);
	}
	rcu_read_unlock();
}

/* A root chunk that has one block's memory: what hooks can be told of. */
static bool sluice_uvm_is_whole(const uvm_gpu_chunk_t *chunk)
{
	return chunk->state == UVM_PMM_GPU_CHUNK_STATE_ALLOCATED && !chunk->in_eviction &&
	       !chunk->parent && chunk->va_block && !list_empty(&chunk->list);
}

static u32 sluice_uvm_index(uvm_pmm_gpu_t *pmm, const uvm_gpu_chunk_t *chunk)
{
	return container_of(chunk, uvm_gpu_root_chunk_t, chunk) - pmm->root_chunks.array;
}

/* With the lists' lock and the RCU read lock held. */
static bool sluice_uvm_describe(uvm_pmm_gpu_t *pmm, struct sluice_uvm_gpu *gpu,
				struct sluice_uvm_place *place, struct sluice_gpu_owner *owner,
				struct sluice_gpu_block *args)
{
	uvm_va_block_t *block = place->chunk->va_block;
	u32 index = sluice_uvm_index(pmm, place->chunk);

	if (!sluice_uvm_owner_of(block, gpu->nobody.id.gpu, owner))
		return false;
	*args = (struct sluice_gpu_block){
		.owner = owner,
		.object = place,
		.block = block->start / UVM_VA_BLOCK_SIZE,
		.generation = gpu->generation[index],
		.now_ns = ktime_get_ns(),
		.chunk = index,
		.chunks = pmm->root_chunks.count,
		/* Of a repeated fault: what it will be in, since that is not noted natively. */
		.list = SLUICE_GPU_LIST_USED,
		.resident = sluice_uvm_resident(block, uvm_pmm_to_gpu(pmm)->id),
	};
	return true;
}

void sluice_uvm_do_activate(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	struct sluice_uvm_place place = { .pmm = pmm, .chunk = chunk };
	struct sluice_gpu_owner owner;
	struct sluice_gpu_block args;
	struct sluice_uvm_gpu *gpu;

	uvm_assert_spinlock_locked(&pmm->list_lock);
	if (!sluice_uvm_is_whole(chunk))
		return;
	rcu_read_lock();
	gpu = sluice_uvm_gpu_of(pmm);
	if (gpu) {
		gpu->generation[sluice_uvm_index(pmm, chunk)]++;
		if (sluice_uvm_asks(SLUICE_GPU_BLOCK_ACTIVATE) &&
		    sluice_uvm_describe(pmm, gpu, &place, &owner, &args))
			sluice_uvm.sluice_gpu_block_activate(gpu->manager, &args);
	}
	rcu_read_unlock();
}

bool sluice_uvm_do_access(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	struct sluice_uvm_place place = { .pmm = pmm, .chunk = chunk };
	struct sluice_gpu_owner owner;
	struct sluice_gpu_block args;
	struct sluice_uvm_gpu *gpu;
	bool done = false;

	if (!sluice_uvm_asks(SLUICE_GPU_BLOCK_ACCESS))
		return false;
	uvm_spin_lock(&pmm->list_lock);
	rcu_read_lock();
	gpu = sluice_uvm_gpu_of(pmm);
	if (gpu && sluice_uvm_is_whole(chunk) &&
	    sluice_uvm_describe(pmm, gpu, &place, &owner, &args))
		done = sluice_uvm.sluice_gpu_block_access(gpu->manager, &args);
	rcu_read_unlock();
	uvm_spin_unlock(&pmm->list_lock);
	return done;
}

/* Adds what can be evicted from a list's head on. Gives how many candidates there are then. */
static u32 sluice_uvm_candidates(uvm_pmm_gpu_t *pmm, struct sluice_uvm_gpu *gpu,
				 enum sluice_gpu_list list, uvm_gpu_chunk_t **chunk, u32 count)
{
	struct list_head *head = list == SLUICE_GPU_LIST_USED ? SLUICE_UVM_USED(pmm) :
								SLUICE_UVM_UNUSED(pmm);
	u32 look = SLUICE_UVM_LOOK;
	uvm_gpu_chunk_t *next;

	list_for_each_entry(next, head, list) {
		struct sluice_uvm_place place = { .pmm = pmm, .chunk = next };
		struct sluice_gpu_owner owner;
		struct sluice_gpu_block block;

		if (count == SLUICE_GPU_CANDIDATES || !look--)
			break;
		if (!sluice_uvm_is_whole(next) ||
		    !sluice_uvm_describe(pmm, gpu, &place, &owner, &block))
			continue;
		gpu->candidate[count] = (struct sluice_gpu_candidate){
			.who = owner.id,
			.cgroup = owner.cgroup,
			.block = block.block,
			.generation = block.generation,
			.chunk = block.chunk,
			.list = list,
			.resident = block.resident,
		};
		chunk[count++] = next;
	}
	return count;
}

uvm_gpu_chunk_t *sluice_uvm_do_victim(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *native)
{
	uvm_gpu_chunk_t *chunk[SLUICE_GPU_CANDIDATES];
	struct sluice_gpu_evict args = {};
	struct sluice_uvm_gpu *gpu;
	int chosen = -1;

	uvm_assert_spinlock_locked(&pmm->list_lock);
	/* A chunk that is free, or of discarded pages, costs nothing to take. */
	if (!native || !sluice_uvm_asks(SLUICE_GPU_EVICT_PREPARE) ||
	    !(list_is_first(&native->list, SLUICE_UVM_UNUSED(pmm)) ||
	      list_is_first(&native->list, SLUICE_UVM_USED(pmm))))
		return native;
	rcu_read_lock();
	gpu = sluice_uvm_gpu_of(pmm);
	if (gpu) {
		args.owner = &gpu->nobody;
		args.candidate = gpu->candidate;
		args.now_ns = ktime_get_ns();
		args.chunks = pmm->root_chunks.count;
		args.unused = sluice_uvm_candidates(pmm, gpu, SLUICE_GPU_LIST_UNUSED, chunk, 0);
		args.candidates = sluice_uvm_candidates(pmm, gpu, SLUICE_GPU_LIST_USED, chunk,
							args.unused);
		args.used = args.candidates - args.unused;
		if (args.candidates)
			chosen = sluice_uvm.sluice_gpu_evict_prepare(gpu->manager, &args);
	}
	rcu_read_unlock();
	return chosen >= 0 ? chunk[chosen] : native;
}
