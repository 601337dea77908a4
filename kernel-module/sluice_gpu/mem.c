// SPDX-License-Identifier: GPL-2.0-only
/* The memory hooks: sluice_gpu_mem_ops and the entry points that managers call. */
#include <linux/bpf_verifier.h>
#include <linux/cgroup.h>

#include "requests.h"

/* Set by .init, that is: the type was found in this module's BTF. */
static bool sluice_mem_known;

static int sluice_mem_init(struct btf *btf)
{
	sluice_mem_known = true;
	return 0;
}

static int sluice_mem_init_member(const struct btf_type *t, const struct btf_member *member,
				  void *kdata, const void *udata)
{
	return sluice_init_member(t, member, kdata, udata,
				  offsetof(struct sluice_gpu_mem_ops, plain));
}

static u32 sluice_mem_hooks(const struct sluice_gpu_mem_ops *ops)
{
	return (ops->page_prefetch ? BIT(SLUICE_GPU_PAGE_PREFETCH) : 0) |
	       (ops->page_prefetch_iter ? BIT(SLUICE_GPU_PAGE_PREFETCH_ITER) : 0) |
	       (ops->block_activate ? BIT(SLUICE_GPU_BLOCK_ACTIVATE) : 0) |
	       (ops->block_access ? BIT(SLUICE_GPU_BLOCK_ACCESS) : 0) |
	       (ops->evict_prepare ? BIT(SLUICE_GPU_EVICT_PREPARE) : 0);
}

static int sluice_mem_validate(void *kdata)
{
	const struct sluice_gpu_mem_ops *ops = kdata;

	return sluice_validate(&ops->plain, sluice_mem_hooks(ops));
}

static int sluice_mem_reg(void *kdata, struct bpf_link *link)
{
	const struct sluice_gpu_mem_ops *ops = kdata;

	return sluice_reg(SLUICE_TYPE_MEM, ops, &ops->plain, sluice_mem_hooks(ops), link);
}

static void sluice_mem_unreg(void *kdata, struct bpf_link *link)
{
	sluice_detach(kdata);
}

static int sluice_mem_update(void *kdata, void *old_kdata, struct bpf_link *link)
{
	const struct sluice_gpu_mem_ops *ops = kdata;

	return sluice_update(ops, old_kdata, &ops->plain, sluice_mem_hooks(ops));
}

static int sluice_stub_prefetch(struct sluice_gpu_prefetch_ctx *ctx)
{
	return 0;
}

static int sluice_stub_block(struct sluice_gpu_block_ctx *ctx)
{
	return 0;
}

static int sluice_stub_evict(struct sluice_gpu_evict_ctx *ctx)
{
	return 0;
}

static struct sluice_gpu_mem_ops sluice_mem_stubs = {
	.page_prefetch = sluice_stub_prefetch,
	.page_prefetch_iter = sluice_stub_prefetch,
	.block_activate = sluice_stub_block,
	.block_access = sluice_stub_block,
	.evict_prepare = sluice_stub_evict,
};

static struct bpf_struct_ops sluice_mem_struct_ops = {
	.verifier_ops = &sluice_verifier_ops,
	.init = sluice_mem_init,
	.check_member = sluice_check_member,
	.init_member = sluice_mem_init_member,
	.validate = sluice_mem_validate,
	.reg = sluice_mem_reg,
	.unreg = sluice_mem_unreg,
	.update = sluice_mem_update,
	.cfi_stubs = &sluice_mem_stubs,
	.name = "sluice_gpu_mem_ops",
	.owner = THIS_MODULE,
};

int sluice_mem_register(void)
{
	int err = register_bpf_struct_ops(&sluice_mem_struct_ops, sluice_gpu_mem_ops);

	return err ?: sluice_mem_known ? 0 : -ENOTSUPP;
}

static bool sluice_region_valid(struct sluice_gpu_region max, u64 first, u64 pages)
{
	return !pages || (first >= max.first && pages <= max.pages &&
			  first - max.first <= max.pages - pages);
}

/* Judges one call of a prefetch hook; the region is written only if it was applied. */
static enum sluice_gpu_outcome sluice_judge_prefetch(const struct sluice_prefetch_call *call,
						     int verdict, struct sluice_gpu_region max,
						     struct sluice_gpu_region *region)
{
	const struct sluice_request *asked = &call->region;

	if (verdict != SLUICE_GPU_DEFAULT &&
	    !(verdict == SLUICE_GPU_ITERATE && call->call.hook == SLUICE_GPU_PAGE_PREFETCH))
		return SLUICE_GPU_BAD_ACTION;
	if (asked->conflict || (asked->asked && verdict == SLUICE_GPU_ITERATE))
		return SLUICE_GPU_CONFLICT;
	if (!asked->asked)
		return SLUICE_GPU_NOTHING;
	if (!sluice_region_valid(max, asked->a, asked->b))
		return SLUICE_GPU_BAD_RANGE;
	region->first = asked->a;
	region->pages = asked->b;
	return SLUICE_GPU_APPLIED;
}

static void sluice_fill_prefetch(struct sluice_gpu_prefetch_ctx *ctx,
				 const struct sluice_gpu_prefetch *args)
{
	*ctx = (struct sluice_gpu_prefetch_ctx){
		.who = args->owner->id,
		.priv = args->data,
		.block = args->block,
		.now_ns = args->now_ns,
		.page = args->page,
		.max_first = args->max.first,
		.max_pages = args->max.pages,
		.resident = args->resident,
		.faulted = args->faulted,
		.threshold = args->threshold,
	};
}

/* The part of a tree node that may be prefetched. */
static struct sluice_gpu_region sluice_node(const struct sluice_gpu_prefetch *args, u32 size)
{
	u32 first = max(args->page & ~(size - 1), args->max.first);
	u32 end = min((args->page & ~(size - 1)) + size, args->max.first + args->max.pages);

	return (struct sluice_gpu_region){ .first = first, .pages = end - first };
}

static bool sluice_iterate(const struct sluice_gpu_prefetch *args, struct sluice_gpu_region *region)
{
	bool taken = false;
	u32 size;

	for (size = 1; size <= SLUICE_GPU_BLOCK_PAGES; size *= 2) {
		struct sluice_prefetch_call call = {};
		const struct sluice_gpu_mem_ops *ops;
		struct sluice_gpu_region node = sluice_node(args, size);
		enum sluice_gpu_outcome outcome = SLUICE_GPU_NOTHING;

		guard(rcu)();
		ops = sluice_call_begin(&call.call, SLUICE_GPU_PAGE_PREFETCH_ITER, args->owner);
		if (!ops)
			return false;
		if (ops->page_prefetch_iter) {
			int verdict;

			sluice_fill_prefetch(&call.ctx, args);
			call.ctx.node_first = node.first;
			call.ctx.node_pages = node.pages;
			call.ctx.node_occupied = args->occupied(args->data, node);
			call.call.begin_ns = ktime_get_mono_fast_ns();
			verdict = ops->page_prefetch_iter(&call.ctx);
			sluice_call_returned(&call.call);
			outcome = sluice_judge_prefetch(&call, verdict, args->max, region);
		}
		taken |= outcome == SLUICE_GPU_APPLIED;
		sluice_call_end(&call.call, outcome);
	}
	return taken;
}

bool sluice_gpu_page_prefetch(struct sluice_gpu_manager *manager,
			      const struct sluice_gpu_prefetch *args,
			      struct sluice_gpu_region *region)
{
	struct sluice_prefetch_call call = {};
	enum sluice_gpu_outcome outcome = SLUICE_GPU_NOTHING;
	const struct sluice_gpu_mem_ops *ops;
	int verdict = SLUICE_GPU_DEFAULT;

	if (!sluice_gpu_has(SLUICE_GPU_PAGE_PREFETCH))
		return false;
	guard(rcu)();
	ops = sluice_call_begin(&call.call, SLUICE_GPU_PAGE_PREFETCH, args->owner);
	if (!ops)
		return false;
	if (ops->page_prefetch) {
		sluice_fill_prefetch(&call.ctx, args);
		verdict = ops->page_prefetch(&call.ctx);
		sluice_call_returned(&call.call);
		outcome = sluice_judge_prefetch(&call, verdict, args->max, region);
	}
	sluice_call_end(&call.call, outcome);
	if (outcome == SLUICE_GPU_NOTHING && verdict == SLUICE_GPU_ITERATE)
		return sluice_iterate(args, region);
	return outcome == SLUICE_GPU_APPLIED;
}
EXPORT_SYMBOL_GPL(sluice_gpu_page_prefetch);

/* Judges one call of a block hook, and has a valid request carried out. */
static enum sluice_gpu_outcome sluice_judge_block(struct sluice_gpu_manager *manager,
						  const struct sluice_gpu_block *args,
						  const struct sluice_block_call *call, int verdict)
{
	const struct sluice_request *asked = &call->reorder;
	bool activate = call->call.hook == SLUICE_GPU_BLOCK_ACTIVATE;

	if (verdict != SLUICE_GPU_DEFAULT && (activate || verdict != SLUICE_GPU_KEEP))
		return SLUICE_GPU_BAD_ACTION;
	if (asked->conflict || (asked->asked && verdict == SLUICE_GPU_KEEP))
		return SLUICE_GPU_CONFLICT;
	/* Kept on unused it would go next, though it was just used: it moves as natively. */
	if (!asked->asked)
		return verdict == SLUICE_GPU_KEEP && args->list == SLUICE_GPU_LIST_USED ?
			       SLUICE_GPU_APPLIED : SLUICE_GPU_NOTHING;
	if ((asked->a != SLUICE_GPU_LIST_USED && asked->a != SLUICE_GPU_LIST_UNUSED) ||
	    (asked->b != SLUICE_GPU_HEAD && asked->b != SLUICE_GPU_TAIL))
		return SLUICE_GPU_BAD_RANGE;
	if (activate && (asked->b == SLUICE_GPU_HEAD || asked->a == SLUICE_GPU_LIST_UNUSED))
		return SLUICE_GPU_BAD_ACTION;
	switch (manager->ops->reorder(args->object, asked->a, asked->b)) {
	case 0:
		return SLUICE_GPU_APPLIED;
	case -EALREADY:
		return SLUICE_GPU_REPEAT;
	default:
		return SLUICE_GPU_STALE;
	}
}

static void sluice_fill_block(struct sluice_gpu_block_ctx *ctx, const struct sluice_gpu_block *args)
{
	*ctx = (struct sluice_gpu_block_ctx){
		.who = args->owner->id,
		.priv = args->object,
		.block = args->block,
		.generation = args->generation,
		.now_ns = args->now_ns,
		.chunk = args->chunk,
		.chunks = args->chunks,
		.list = args->list,
		.resident = args->resident,
	};
}

void sluice_gpu_block_activate(struct sluice_gpu_manager *manager,
			       const struct sluice_gpu_block *args)
{
	struct sluice_block_call call = {};
	enum sluice_gpu_outcome outcome = SLUICE_GPU_NOTHING;
	const struct sluice_gpu_mem_ops *ops;

	if (!sluice_gpu_has(SLUICE_GPU_BLOCK_ACTIVATE))
		return;
	guard(rcu)();
	ops = sluice_call_begin(&call.call, SLUICE_GPU_BLOCK_ACTIVATE, args->owner);
	if (!ops)
		return;
	if (ops->block_activate) {
		int verdict;

		sluice_fill_block(&call.ctx, args);
		verdict = ops->block_activate(&call.ctx);
		sluice_call_returned(&call.call);
		outcome = sluice_judge_block(manager, args, &call, verdict);
	}
	sluice_call_end(&call.call, outcome);
}
EXPORT_SYMBOL_GPL(sluice_gpu_block_activate);

bool sluice_gpu_block_access(struct sluice_gpu_manager *manager,
			     const struct sluice_gpu_block *args)
{
	struct sluice_block_call call = {};
	enum sluice_gpu_outcome outcome = SLUICE_GPU_NOTHING;
	const struct sluice_gpu_mem_ops *ops;

	if (!sluice_gpu_has(SLUICE_GPU_BLOCK_ACCESS))
		return false;
	guard(rcu)();
	ops = sluice_call_begin(&call.call, SLUICE_GPU_BLOCK_ACCESS, args->owner);
	if (!ops)
		return false;
	if (ops->block_access) {
		int verdict;

		sluice_fill_block(&call.ctx, args);
		verdict = ops->block_access(&call.ctx);
		sluice_call_returned(&call.call);
		outcome = sluice_judge_block(manager, args, &call, verdict);
	}
	sluice_call_end(&call.call, outcome);
	return outcome == SLUICE_GPU_APPLIED || outcome == SLUICE_GPU_REPEAT;
}
EXPORT_SYMBOL_GPL(sluice_gpu_block_access);

static enum sluice_gpu_outcome sluice_judge_evict(const struct sluice_evict_call *call, int verdict)
{
	const struct sluice_request *asked = &call->victim;

	if (verdict != SLUICE_GPU_DEFAULT)
		return SLUICE_GPU_BAD_ACTION;
	if (asked->conflict)
		return SLUICE_GPU_CONFLICT;
	if (!asked->asked)
		return SLUICE_GPU_NOTHING;
	if (asked->a >= call->ctx.candidates)
		return SLUICE_GPU_BAD_RANGE;
	if (!sluice_in_scope(&call->call, call->candidate[asked->a].cgroup))
		return SLUICE_GPU_BAD_IDENTITY;
	return SLUICE_GPU_APPLIED;
}

int sluice_gpu_evict_prepare(struct sluice_gpu_manager *manager,
			     const struct sluice_gpu_evict *args)
{
	struct sluice_evict_call call = { .candidate = args->candidate };
	enum sluice_gpu_outcome outcome = SLUICE_GPU_NOTHING;
	const struct sluice_gpu_mem_ops *ops;

	if (!sluice_gpu_has(SLUICE_GPU_EVICT_PREPARE))
		return -1;
	guard(rcu)();
	ops = sluice_call_begin(&call.call, SLUICE_GPU_EVICT_PREPARE, args->owner);
	if (!ops)
		return -1;
	if (ops->evict_prepare) {
		int verdict;

		call.ctx = (struct sluice_gpu_evict_ctx){
			.who = args->owner->id,
			.priv = args->candidate,
			.now_ns = args->now_ns,
			.candidates = min(args->candidates, SLUICE_GPU_CANDIDATES),
			.chunks = args->chunks,
			.used = args->used,
			.unused = args->unused,
		};
		verdict = ops->evict_prepare(&call.ctx);
		sluice_call_returned(&call.call);
		outcome = sluice_judge_evict(&call, verdict);
	}
	sluice_call_end(&call.call, outcome);
	return outcome == SLUICE_GPU_APPLIED ? (int)call.victim.a : -1;
}
EXPORT_SYMBOL_GPL(sluice_gpu_evict_prepare);
