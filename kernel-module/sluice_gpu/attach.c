// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is attached, whom it serves, and whether it is still trusted.
 *
 * For each hook there is a table of the attachments that have it, the most specific
 * scope first: a deeper cgroup before a shallower one, then one GPU before all. The
 * first that matches an owner serves it, and nobody else does, even when it is bypassed:
 * what a scope was given is replaced by the native behaviour, not by a policy that was
 * meant for others. Two attachments of one scope may not have the same hook.
 *
 * Tables change under sluice_lock and are read under RCU. An attachment leaves all
 * tables, and a grace period passes, before BPF may free its programs.
 */
#include <linux/cgroup.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>

#include "internal.h"

struct sluice_table {
	struct rcu_head rcu;
	u32 count;
	struct sluice_attachment *entry[] __counted_by(count);
};

/* Over what is attached and the managers; hooks read without it, under RCU. */
DEFINE_MUTEX(sluice_lock);
LIST_HEAD(sluice_attachments);

static struct sluice_table __rcu *sluice_tables[SLUICE_GPU_HOOKS];
static u64 sluice_next_id = 1;

struct static_key_false sluice_gpu_keys[SLUICE_GPU_HOOKS] = {
	[0 ... SLUICE_GPU_HOOKS - 1] = STATIC_KEY_FALSE_INIT,
};
EXPORT_SYMBOL_GPL(sluice_gpu_keys);

static int sluice_depth(const struct sluice_scope *scope)
{
	return scope->cgroup ? scope->cgroup->level : -1;
}

static bool sluice_more_specific(const struct sluice_scope *a, const struct sluice_scope *b)
{
	if (sluice_depth(a) != sluice_depth(b))
		return sluice_depth(a) > sluice_depth(b);
	return a->gpu != SLUICE_GPU_ANY && b->gpu == SLUICE_GPU_ANY;
}

static void sluice_publish(enum sluice_gpu_hook hook, struct sluice_table *table)
{
	struct sluice_table *old;

	old = rcu_replace_pointer(sluice_tables[hook], table, lockdep_is_held(&sluice_lock));
	if (old)
		kfree_rcu(old, rcu);
}

/*
 * Puts a hook's table together anew. Without memory for it the hook becomes native: the
 * old table may name an attachment that is about to be freed.
 */
static int sluice_build_table(enum sluice_gpu_hook hook)
{
	struct sluice_table *table = NULL;
	struct sluice_attachment *attachment;
	u32 count = 0, place;

	list_for_each_entry(attachment, &sluice_attachments, node)
		count += !!(attachment->hooks & BIT(hook));
	if (count) {
		table = kzalloc(struct_size(table, entry, count), GFP_KERNEL);
		if (!table) {
			sluice_publish(hook, NULL);
			pr_err("sluice_gpu: no memory; hook %d is native until a policy that has it comes or goes\n",
			       hook);
			return -ENOMEM;
		}
		table->count = count;
		count = 0;
		list_for_each_entry(attachment, &sluice_attachments, node) {
			if (!(attachment->hooks & BIT(hook)))
				continue;
			for (place = count; place; place--) {
				if (!sluice_more_specific(&attachment->scope,
							  &table->entry[place - 1]->scope))
					break;
				table->entry[place] = table->entry[place - 1];
			}
			table->entry[place] = attachment;
			count++;
		}
	}
	sluice_publish(hook, table);
	return 0;
}

/* A key is on while someone would be called: bypassed policies do not count. */
static void sluice_switch_keys(void)
{
	struct sluice_attachment *attachment;
	u32 wanted = 0;
	int hook;

	list_for_each_entry(attachment, &sluice_attachments, node) {
		if (!READ_ONCE(attachment->bypass))
			wanted |= attachment->hooks;
	}
	for (hook = 0; hook < SLUICE_GPU_HOOKS; hook++) {
		if (wanted & BIT(hook))
			static_branch_enable(&sluice_gpu_keys[hook]);
		else
			static_branch_disable(&sluice_gpu_keys[hook]);
	}
}

/* An error leaves no hook out: each one of them has a new table or none. */
static int sluice_build(u32 hooks)
{
	int hook, err = 0;

	for (hook = 0; hook < SLUICE_GPU_HOOKS; hook++) {
		if (hooks & BIT(hook) && sluice_build_table(hook))
			err = -ENOMEM;
	}
	sluice_switch_keys();
	return err;
}

static const char *const sluice_reasons[] = {
	[SLUICE_BYPASS_SLOW] = "too many calls over their time budget",
	[SLUICE_BYPASS_WRONG] = "too many wrong answers",
	[SLUICE_BYPASS_FAULTS] = "too many faults since it was attached",
};

static void sluice_bypass_work(struct work_struct *work)
{
	struct sluice_attachment *attachment =
		container_of(work, struct sluice_attachment, bypass_work);

	mutex_lock(&sluice_lock);
	/* Replaced by a new load in the meantime: that one is trusted. */
	if (READ_ONCE(attachment->bypass)) {
		sluice_switch_keys();
		sluice_announce(SLUICE_EVENT_BYPASSED, attachment);
		pr_warn("sluice_gpu: policy %s is bypassed: %s; native service from now on\n",
			attachment->scope.name,
			sluice_reasons[attachment->bypass]);
	}
	mutex_unlock(&sluice_lock);
}

static struct sluice_attachment *sluice_find(const void *ops)
{
	struct sluice_attachment *attachment;

	list_for_each_entry(attachment, &sluice_attachments, node) {
		if (rcu_access_pointer(attachment->ops) == ops)
			return attachment;
	}
	return NULL;
}

/* The attachment that has one of those hooks for that very scope already. */
static const struct sluice_attachment *sluice_rival(const struct sluice_scope *scope, u32 hooks,
						    const struct sluice_attachment *except)
{
	const struct sluice_attachment *attachment;

	list_for_each_entry(attachment, &sluice_attachments, node) {
		if (attachment != except && attachment->hooks & hooks &&
		    attachment->scope.gpu == scope->gpu &&
		    attachment->scope.cgroup == scope->cgroup)
			return attachment;
	}
	return NULL;
}

static void sluice_free(struct sluice_attachment *attachment)
{
	free_percpu(attachment->stats);
	sluice_scope_put(&attachment->scope);
	kfree(attachment);
}

/* Takes over the scope's reference to its cgroup if it succeeds. */
int sluice_attach(enum sluice_type type, const void *ops, const struct sluice_scope *scope,
		  u32 hooks)
{
	struct sluice_attachment *attachment;
	const struct sluice_attachment *rival;
	int err;

	attachment = kzalloc(sizeof(*attachment), GFP_KERNEL);
	if (!attachment)
		return -ENOMEM;
	attachment->stats = alloc_percpu(struct sluice_stats);
	if (!attachment->stats) {
		kfree(attachment);
		return -ENOMEM;
	}
	attachment->type = type;
	attachment->hooks = hooks;
	INIT_WORK(&attachment->bypass_work, sluice_bypass_work);
	spin_lock_init(&attachment->charge_lock);
	RCU_INIT_POINTER(attachment->ops, ops);

	mutex_lock(&sluice_lock);
	rival = sluice_rival(scope, hooks, NULL);
	if (rival) {
		pr_err("sluice_gpu: policy %s has a hook that %s serves in the same scope\n",
		       scope->name, rival->scope.name);
		err = -EEXIST;
		goto refuse;
	}
	if (list_count_nodes(&sluice_attachments) >= SLUICE_MAX_ATTACHMENTS) {
		err = -ENOSPC;
		goto refuse;
	}
	attachment->id = sluice_next_id++;
	attachment->scope = *scope;
	list_add_tail(&attachment->node, &sluice_attachments);
	err = sluice_build(hooks);
	if (err) {
		list_del(&attachment->node);
		sluice_build(hooks);
		mutex_unlock(&sluice_lock);
		/* For a moment it may have been called, and even been bypassed. */
		synchronize_rcu();
		cancel_work_sync(&attachment->bypass_work);
		goto free;
	}
	sluice_trial_begin(attachment);
	sluice_announce(SLUICE_EVENT_ATTACHED, attachment);
	mutex_unlock(&sluice_lock);
	return 0;

refuse:
	mutex_unlock(&sluice_lock);
free:
	/* The caller keeps its reference to the cgroup. */
	free_percpu(attachment->stats);
	kfree(attachment);
	return err;
}

void sluice_detach(const void *ops)
{
	struct sluice_attachment *attachment;

	mutex_lock(&sluice_lock);
	attachment = sluice_find(ops);
	if (WARN_ON_ONCE(!attachment)) {
		mutex_unlock(&sluice_lock);
		return;
	}
	list_del(&attachment->node);
	sluice_trial_forget(attachment);
	RCU_INIT_POINTER(attachment->ops, NULL);
	sluice_build(attachment->hooks);
	sluice_announce(SLUICE_EVENT_DETACHED, attachment);
	mutex_unlock(&sluice_lock);
	synchronize_rcu();
	cancel_work_sync(&attachment->bypass_work);
	sluice_free(attachment);
}

static void sluice_window_begin(struct sluice_window *window)
{
	atomic_set(&window->calls, 0);
	atomic_set(&window->slow, 0);
	atomic_set(&window->wrong, 0);
}

/*
 * Has the attachment call new_ops from now on. What runs at this moment finishes with
 * old_ops; no call finds neither. Counters go on; a bypass is lifted, this being a new
 * load. The scope's reference stays the caller's: it is of the same cgroup, and who is
 * served must not change while calls read it.
 */
int sluice_replace(const void *new_ops, const void *old_ops, const struct sluice_scope *scope,
		   u32 hooks)
{
	struct sluice_attachment *attachment;
	int hook, err;
	u32 before;

	mutex_lock(&sluice_lock);
	attachment = sluice_find(old_ops);
	if (!attachment) {
		err = -ENOENT;
		goto unlock;
	}
	if (attachment->scope.gpu != scope->gpu || attachment->scope.cgroup != scope->cgroup) {
		pr_err("sluice_gpu: policy %s is for another GPU or cgroup than %s, which it was to replace\n",
		       scope->name, attachment->scope.name);
		err = -EINVAL;
		goto unlock;
	}
	if (sluice_rival(scope, hooks, attachment)) {
		err = -EEXIST;
		goto unlock;
	}
	before = attachment->hooks;
	/* A table entry whose ops lack the hook is native, so the order does not matter. */
	attachment->hooks = before | hooks;
	err = sluice_build(hooks & ~before);
	if (err) {
		attachment->hooks = before;
		sluice_build(hooks & ~before);
		goto unlock;
	}
	rcu_assign_pointer(attachment->ops, new_ops);
	/* Then nobody runs the old one any more, whose deeds are not the new one's. */
	synchronize_rcu();
	attachment->hooks = hooks;
	attachment->replaced++;
	WRITE_ONCE(attachment->scope.budget_ns, scope->budget_ns);
	WRITE_ONCE(attachment->scope.fault_percent, scope->fault_percent);
	strscpy(attachment->scope.name, scope->name, sizeof(attachment->scope.name));
	for (hook = 0; hook < SLUICE_GPU_HOOKS; hook++)
		sluice_window_begin(&attachment->window[hook]);
	/* In this order: what the trial of the old one still says is lifted too. */
	sluice_trial_again(attachment);
	WRITE_ONCE(attachment->bypass, SLUICE_BYPASS_NONE);
	/* Must not name it any more: when it goes, only the tables of its hooks are built anew. */
	sluice_build(before & ~hooks);
	sluice_announce(SLUICE_EVENT_REPLACED, attachment);
unlock:
	mutex_unlock(&sluice_lock);
	return err;
}

static bool sluice_serves(const struct sluice_scope *scope, const struct sluice_gpu_owner *owner)
{
	if (scope->gpu != SLUICE_GPU_ANY && scope->gpu != owner->id.gpu)
		return false;
	return !scope->cgroup || cgroup_is_descendant(owner->cgroup, scope->cgroup);
}

/*
 * Finds who serves the owner at a hook and starts the clock; NULL: nobody does. The
 * caller holds the RCU read lock until after sluice_call_end.
 */
const void *sluice_call_begin(struct sluice_call *call, enum sluice_gpu_hook hook,
			      const struct sluice_gpu_owner *owner)
{
	const struct sluice_table *table;
	const void *ops = NULL;
	u32 i;

	table = rcu_dereference(sluice_tables[hook]);
	for (i = 0; table && i < table->count; i++) {
		struct sluice_attachment *attachment = table->entry[i];

		if (!sluice_serves(&attachment->scope, owner))
			continue;
		if (READ_ONCE(attachment->bypass))
			break;
		call->attachment = attachment;
		call->hook = hook;
		ops = rcu_dereference(attachment->ops);
		break;
	}
	if (ops)
		call->begin_ns = ktime_get_mono_fast_ns();
	return ops;
}

/* Has a policy called no more. Of several who say so the first one's charge stays. */
void sluice_distrust(struct sluice_attachment *attachment, enum sluice_bypass reason,
		     const struct sluice_charge *charge)
{
	unsigned long flags;

	spin_lock_irqsave(&attachment->charge_lock, flags);
	if (READ_ONCE(attachment->bypass) == SLUICE_BYPASS_NONE) {
		attachment->charge = *charge;
		/* Who sees the one sees the other. */
		smp_store_release(&attachment->bypass, reason);
		schedule_work(&attachment->bypass_work);
	}
	spin_unlock_irqrestore(&attachment->charge_lock, flags);
}

static void sluice_distrust_call(const struct sluice_call *call, enum sluice_bypass reason)
{
	const struct sluice_charge charge = { .hook = call->hook, .ns = call->spent_ns };

	sluice_distrust(call->attachment, reason, &charge);
}

/* Counts the call and judges the policy. */
void sluice_call_end(struct sluice_call *call, enum sluice_gpu_outcome outcome)
{
	struct sluice_attachment *attachment = call->attachment;
	struct sluice_window *window = &attachment->window[call->hook];
	struct sluice_hook_stats *stats;

	preempt_disable();
	stats = &this_cpu_ptr(attachment->stats)->hook[call->hook];
	stats->calls++;
	stats->time_ns += call->spent_ns;
	stats->max_ns = max(stats->max_ns, call->spent_ns);
	stats->outcome[outcome]++;
	preempt_enable();

	if (atomic_inc_return(&window->calls) >= SLUICE_WINDOW_CALLS)
		sluice_window_begin(window);
	/* After the fact: a BPF program can't be interrupted. */
	if (call->spent_ns > READ_ONCE(attachment->scope.budget_ns) &&
	    atomic_inc_return(&window->slow) >= SLUICE_WINDOW_SLOW)
		sluice_distrust_call(call, SLUICE_BYPASS_SLOW);
	if (outcome >= SLUICE_GPU_CONFLICT &&
	    atomic_inc_return(&window->wrong) >= SLUICE_WINDOW_WRONG)
		sluice_distrust_call(call, SLUICE_BYPASS_WRONG);
}

/* Adds up all processors' counters; with a policy running they are of no single moment. */
void sluice_sum_stats(const struct sluice_attachment *attachment, struct sluice_stats *sum)
{
	int cpu, hook, outcome;

	memset(sum, 0, sizeof(*sum));
	for_each_possible_cpu(cpu) {
		const struct sluice_stats *part = per_cpu_ptr(attachment->stats, cpu);

		for (hook = 0; hook < SLUICE_GPU_HOOKS; hook++) {
			sum->hook[hook].calls += part->hook[hook].calls;
			sum->hook[hook].time_ns += part->hook[hook].time_ns;
			sum->hook[hook].max_ns = max(sum->hook[hook].max_ns,
						     part->hook[hook].max_ns);
			for (outcome = 0; outcome < SLUICE_GPU_OUTCOMES; outcome++)
				sum->hook[hook].outcome[outcome] +=
					part->hook[hook].outcome[outcome];
		}
	}
}
