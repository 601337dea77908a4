// SPDX-License-Identifier: GPL-2.0-only
/*
 * The functions that policies call. They record and read; nothing is done and nothing is
 * judged here. What was recorded is judged where the hook was called.
 */
#include <linux/btf_ids.h>
#include <linux/cgroup.h>

#include "requests.h"

bool sluice_in_scope(const struct sluice_call *call, const struct cgroup *cgroup)
{
	const struct sluice_scope *scope = &call->attachment->scope;

	return !scope->cgroup || cgroup_is_descendant((struct cgroup *)cgroup, scope->cgroup);
}

__bpf_kfunc_start_defs();

__bpf_kfunc int sluice_bpf_prefetch(struct sluice_gpu_prefetch_ctx *ctx, u32 first, u32 pages)
{
	struct sluice_prefetch_call *call = container_of(ctx, struct sluice_prefetch_call, ctx);

	/* No pages are the same request wherever they are not. */
	sluice_record(&call->region, pages ? first : 0, pages);
	return 0;
}

__bpf_kfunc int sluice_bpf_reorder(struct sluice_gpu_block_ctx *ctx, u32 list, u32 position)
{
	sluice_record(&container_of(ctx, struct sluice_block_call, ctx)->reorder, list, position);
	return 0;
}

__bpf_kfunc const struct sluice_gpu_candidate *
sluice_bpf_candidate(struct sluice_gpu_evict_ctx *ctx, u32 index)
{
	struct sluice_evict_call *call = container_of(ctx, struct sluice_evict_call, ctx);

	if (index >= ctx->candidates ||
	    !sluice_in_scope(&call->call, call->candidate[index].cgroup))
		return NULL;
	return &call->candidate[index];
}

__bpf_kfunc int sluice_bpf_evict(struct sluice_gpu_evict_ctx *ctx, u32 index)
{
	sluice_record(&container_of(ctx, struct sluice_evict_call, ctx)->victim, index, 0);
	return 0;
}

__bpf_kfunc int sluice_bpf_timeslice(struct sluice_gpu_task_ctx *ctx, u64 us)
{
	sluice_record(&container_of(ctx, struct sluice_task_call, ctx)->timeslice, us, 0);
	return 0;
}

__bpf_kfunc int sluice_bpf_interleave(struct sluice_gpu_task_ctx *ctx, u32 level)
{
	sluice_record(&container_of(ctx, struct sluice_task_call, ctx)->interleave, level, 0);
	return 0;
}

__bpf_kfunc int sluice_bpf_admit(struct sluice_gpu_task_ctx *ctx, u32 admit)
{
	sluice_record(&container_of(ctx, struct sluice_task_call, ctx)->admit, admit, 0);
	return 0;
}

__bpf_kfunc int sluice_bpf_preempt(struct sluice_gpu_task_ctx *ctx, u32 runlist, u32 tsg)
{
	sluice_record(&container_of(ctx, struct sluice_task_call, ctx)->preempt, runlist, tsg);
	return 0;
}

__bpf_kfunc_end_defs();

BTF_KFUNCS_START(sluice_kfuncs)
BTF_ID_FLAGS(func, sluice_bpf_prefetch, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, sluice_bpf_reorder, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, sluice_bpf_candidate, KF_TRUSTED_ARGS | KF_RET_NULL)
BTF_ID_FLAGS(func, sluice_bpf_evict, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, sluice_bpf_timeslice, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, sluice_bpf_interleave, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, sluice_bpf_admit, KF_TRUSTED_ARGS)
BTF_ID_FLAGS(func, sluice_bpf_preempt, KF_TRUSTED_ARGS)
BTF_KFUNCS_END(sluice_kfuncs)

static const struct btf_kfunc_id_set sluice_kfunc_set = {
	.owner = THIS_MODULE,
	.set = &sluice_kfuncs,
};

int sluice_register_kfuncs(void)
{
	return register_btf_kfunc_id_set(BPF_PROG_TYPE_STRUCT_OPS, &sluice_kfunc_set);
}
