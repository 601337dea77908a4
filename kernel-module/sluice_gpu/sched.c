// SPDX-License-Identifier: GPL-2.0-only
/* The scheduling hooks: sluice_gpu_sched_ops and the entry points that managers call. */
#include <linux/bpf_verifier.h>
#include <linux/cgroup.h>
#include <linux/slab.h>

#include "requests.h"

/* Set by .init, that is: the type was found in this module's BTF. */
static bool sluice_sched_known;

/* A preemption that was asked for, on its way to the manager's worker. */
struct sluice_preemption {
	struct work_struct work;
	struct sluice_gpu_manager *manager;
	u64 attachment_id;
	u32 runlist;
	u32 tsg;
};

static int sluice_sched_init(struct btf *btf)
{
	sluice_sched_known = true;
	return 0;
}

static int sluice_sched_init_member(const struct btf_type *t, const struct btf_member *member,
				    void *kdata, const void *udata)
{
	return sluice_init_member(t, member, kdata, udata,
				  offsetof(struct sluice_gpu_sched_ops, plain));
}

static u32 sluice_sched_hooks(const struct sluice_gpu_sched_ops *ops)
{
	return (ops->task_init ? BIT(SLUICE_GPU_TASK_INIT) : 0) |
	       (ops->bind ? BIT(SLUICE_GPU_BIND) : 0) |
	       (ops->timeslice_control ? BIT(SLUICE_GPU_TIMESLICE_CONTROL) : 0) |
	       (ops->task_destroy ? BIT(SLUICE_GPU_TASK_DESTROY) : 0);
}

static int sluice_sched_validate(void *kdata)
{
	const struct sluice_gpu_sched_ops *ops = kdata;

	return sluice_validate(&ops->plain, sluice_sched_hooks(ops));
}

static int sluice_sched_reg(void *kdata, struct bpf_link *link)
{
	const struct sluice_gpu_sched_ops *ops = kdata;

	return sluice_reg(SLUICE_TYPE_SCHED, ops, &ops->plain, sluice_sched_hooks(ops), link);
}

static void sluice_sched_unreg(void *kdata, struct bpf_link *link)
{
	sluice_detach(kdata);
}

static int sluice_sched_update(void *kdata, void *old_kdata, struct bpf_link *link)
{
	const struct sluice_gpu_sched_ops *ops = kdata;

	return sluice_update(ops, old_kdata, &ops->plain, sluice_sched_hooks(ops));
}

static int sluice_stub_task(struct sluice_gpu_task_ctx *ctx)
{
	return 0;
}

static struct sluice_gpu_sched_ops sluice_sched_stubs = {
	.task_init = sluice_stub_task,
	.bind = sluice_stub_task,
	.timeslice_control = sluice_stub_task,
	.task_destroy = sluice_stub_task,
};

static struct bpf_struct_ops sluice_sched_struct_ops = {
	.verifier_ops = &sluice_verifier_ops,
	.init = sluice_sched_init,
	.check_member = sluice_check_member,
	.init_member = sluice_sched_init_member,
	.validate = sluice_sched_validate,
	.reg = sluice_sched_reg,
	.unreg = sluice_sched_unreg,
	.update = sluice_sched_update,
	.cfi_stubs = &sluice_sched_stubs,
	.name = "sluice_gpu_sched_ops",
	.owner = THIS_MODULE,
};

int sluice_sched_register(void)
{
	int err = register_bpf_struct_ops(&sluice_sched_struct_ops, sluice_gpu_sched_ops);

	return err ?: sluice_sched_known ? 0 : -ENOTSUPP;
}

static void sluice_preempt_work(struct work_struct *work)
{
	struct sluice_preemption *preemption = container_of(work, struct sluice_preemption, work);
	struct sluice_gpu_manager *manager = preemption->manager;
	struct sluice_attachment *attachment;

	mutex_lock(&sluice_lock);
	list_for_each_entry(attachment, &sluice_attachments, node) {
		int err;

		/* Detached in the meantime: nobody asks any more. */
		if (attachment->id != preemption->attachment_id)
			continue;
		err = manager->ops->preempt(manager->data, preemption->runlist, preemption->tsg,
					    attachment->scope.cgroup);
		if (!err)
			atomic64_inc(&attachment->preempt_done);
		else if (err == -EPERM)
			atomic64_inc(&attachment->preempt_refused);
		else
			atomic64_inc(&attachment->preempt_stale);
		break;
	}
	mutex_unlock(&sluice_lock);
	kfree(preemption);
}

static void sluice_preempt(struct sluice_gpu_manager *manager, const struct sluice_task_call *call)
{
	struct sluice_attachment *attachment = call->call.attachment;
	struct sluice_preemption *preemption;

	preemption = manager->ops->preempt ? kzalloc(sizeof(*preemption), GFP_ATOMIC) : NULL;
	if (!preemption) {
		atomic64_inc(&attachment->preempt_refused);
		return;
	}
	INIT_WORK(&preemption->work, sluice_preempt_work);
	preemption->manager = manager;
	preemption->attachment_id = attachment->id;
	preemption->runlist = call->preempt.a;
	preemption->tsg = call->preempt.b;
	queue_work(manager->worker, &preemption->work);
}

/* All or nothing: one wrong request voids the others of its call. */
static enum sluice_gpu_outcome sluice_judge_task(const struct sluice_task_call *call,
						 const struct sluice_gpu_task *args, int verdict,
						 struct sluice_gpu_task_decision *decision)
{
	enum sluice_gpu_hook hook = call->call.hook;
	bool any = call->timeslice.asked || call->interleave.asked || call->admit.asked ||
		   call->preempt.asked;

	if (verdict != SLUICE_GPU_DEFAULT)
		return SLUICE_GPU_BAD_ACTION;
	if (!any)
		return SLUICE_GPU_NOTHING;
	if (call->timeslice.conflict || call->interleave.conflict || call->admit.conflict ||
	    call->preempt.conflict)
		return SLUICE_GPU_CONFLICT;
	if (hook == SLUICE_GPU_TASK_DESTROY || (call->admit.asked && hook != SLUICE_GPU_BIND))
		return SLUICE_GPU_BAD_ACTION;
	if ((call->timeslice.asked &&
	     (!call->timeslice.a || call->timeslice.a > SLUICE_GPU_TIMESLICE_MAX_US)) ||
	    (call->interleave.asked && call->interleave.a > SLUICE_GPU_INTERLEAVE_MAX) ||
	    (call->admit.asked && call->admit.a > 1))
		return SLUICE_GPU_BAD_RANGE;

	decision->has_timeslice = call->timeslice.asked;
	decision->timeslice_us = call->timeslice.a;
	decision->has_interleave = call->interleave.asked;
	decision->interleave = call->interleave.a;
	decision->deny = call->admit.asked && !call->admit.a;
	if (!call->preempt.asked && !decision->deny &&
	    (!decision->has_timeslice || decision->timeslice_us == args->timeslice_us) &&
	    (!decision->has_interleave || decision->interleave == args->interleave))
		return SLUICE_GPU_REPEAT;
	return SLUICE_GPU_APPLIED;
}

static void sluice_fill_task(struct sluice_gpu_task_ctx *ctx, const struct sluice_gpu_task *args)
{
	*ctx = (struct sluice_gpu_task_ctx){
		.who = args->owner->id,
		.priv = args->owner,
		.now_ns = args->now_ns,
		.timeslice_us = args->timeslice_us,
		.requested_us = args->requested_us,
		.runlist = args->runlist,
		.tsg = args->tsg,
		.engine = args->engine,
		.channels = args->channels,
		.interleave = args->interleave,
	};
}

static int (*sluice_task_program(const struct sluice_gpu_sched_ops *ops,
				 enum sluice_gpu_hook hook))(struct sluice_gpu_task_ctx *ctx)
{
	switch (hook) {
	case SLUICE_GPU_TASK_INIT:
		return ops->task_init;
	case SLUICE_GPU_BIND:
		return ops->bind;
	case SLUICE_GPU_TIMESLICE_CONTROL:
		return ops->timeslice_control;
	default:
		return ops->task_destroy;
	}
}

static void sluice_task_hook(struct sluice_gpu_manager *manager, enum sluice_gpu_hook hook,
			     const struct sluice_gpu_task *args,
			     struct sluice_gpu_task_decision *decision)
{
	struct sluice_task_call call = {};
	enum sluice_gpu_outcome outcome = SLUICE_GPU_NOTHING;
	int (*program)(struct sluice_gpu_task_ctx *ctx);
	const struct sluice_gpu_sched_ops *ops;

	memset(decision, 0, sizeof(*decision));
	guard(rcu)();
	ops = sluice_call_begin(&call.call, hook, args->owner);
	if (!ops)
		return;
	program = sluice_task_program(ops, hook);
	if (program) {
		int verdict;

		sluice_fill_task(&call.ctx, args);
		verdict = program(&call.ctx);
		sluice_call_returned(&call.call);
		outcome = sluice_judge_task(&call, args, verdict, decision);
		if (outcome == SLUICE_GPU_APPLIED && call.preempt.asked)
			sluice_preempt(manager, &call);
	}
	sluice_call_end(&call.call, outcome);
}

void sluice_gpu_task_init(struct sluice_gpu_manager *manager, const struct sluice_gpu_task *args,
			  struct sluice_gpu_task_decision *decision)
{
	memset(decision, 0, sizeof(*decision));
	if (sluice_gpu_has(SLUICE_GPU_TASK_INIT))
		sluice_task_hook(manager, SLUICE_GPU_TASK_INIT, args, decision);
}
EXPORT_SYMBOL_GPL(sluice_gpu_task_init);

void sluice_gpu_bind(struct sluice_gpu_manager *manager, const struct sluice_gpu_task *args,
		     struct sluice_gpu_task_decision *decision)
{
	memset(decision, 0, sizeof(*decision));
	if (sluice_gpu_has(SLUICE_GPU_BIND))
		sluice_task_hook(manager, SLUICE_GPU_BIND, args, decision);
}
EXPORT_SYMBOL_GPL(sluice_gpu_bind);

void sluice_gpu_timeslice_control(struct sluice_gpu_manager *manager,
				  const struct sluice_gpu_task *args,
				  struct sluice_gpu_task_decision *decision)
{
	memset(decision, 0, sizeof(*decision));
	if (sluice_gpu_has(SLUICE_GPU_TIMESLICE_CONTROL))
		sluice_task_hook(manager, SLUICE_GPU_TIMESLICE_CONTROL, args, decision);
}
EXPORT_SYMBOL_GPL(sluice_gpu_timeslice_control);

void sluice_gpu_task_destroy(struct sluice_gpu_manager *manager, const struct sluice_gpu_task *args)
{
	struct sluice_gpu_task_decision decision;

	if (sluice_gpu_has(SLUICE_GPU_TASK_DESTROY))
		sluice_task_hook(manager, SLUICE_GPU_TASK_DESTROY, args, &decision);
}
EXPORT_SYMBOL_GPL(sluice_gpu_task_destroy);
