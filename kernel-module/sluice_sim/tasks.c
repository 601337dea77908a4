// SPDX-License-Identifier: GPL-2.0-only
/*
 * The scheduler: tasks (groups of channels, TSG) with timeslices on runlists, each
 * runlist an engine of its own. A runlist gives turns to its runnable tasks, the one
 * with the lowest pass first; a turn costs 4, 2 or 1 by interleave level, so that a high
 * task has four turns for one of a low task. A turn ends with the timeslice, with the
 * work, or by preemption; another task's turn costs a switch.
 */
#include <linux/cgroup.h>
#include <linux/math64.h>
#include <linux/slab.h>

#include "sim.h"

static struct sim_task **sim_slot(struct sim *sim, u32 tsg, u64 runlist)
{
	int i;

	for (i = 0; i < SLUICE_SIM_TASKS; i++) {
		struct sim_task *task = sim->task[i];

		if (task && task->tsg == tsg && task->runlist == runlist)
			return &sim->task[i];
	}
	return NULL;
}

static struct sluice_gpu_task sim_describe(const struct sim *sim, const struct sim_task *task)
{
	return (struct sluice_gpu_task){
		.owner = &task->tenant->owner,
		.now_ns = sim_now(sim),
		.timeslice_us = task->timeslice_us,
		.runlist = task->runlist,
		.tsg = task->tsg,
		.engine = task->engine,
		.channels = 1,
		.interleave = task->interleave,
	};
}

static void sim_apply(struct sim_task *task, const struct sluice_gpu_task_decision *decision)
{
	if (decision->has_timeslice)
		task->timeslice_us = decision->timeslice_us;
	if (decision->has_interleave)
		task->interleave = decision->interleave;
}

int sim_task_create(struct sim *sim, struct sim_tenant *tenant, u32 tsg, u64 runlist, u64 engine)
{
	struct sluice_gpu_task_decision decision;
	struct sluice_gpu_task args;
	struct sim_task *task;
	int i;

	if (runlist >= SLUICE_SIM_RUNLISTS || engine > 1)
		return -EINVAL;
	if (sim_slot(sim, tsg, runlist))
		return -EEXIST;
	task = kzalloc(sizeof(*task), GFP_KERNEL);
	if (!task)
		return -ENOMEM;
	task->tenant = tenant;
	INIT_LIST_HEAD(&task->jobs);
	task->runlist = runlist;
	task->tsg = tsg;
	task->engine = engine;
	task->timeslice_us = SIM_TIMESLICE_US;
	for (i = 0; i < SLUICE_SIM_TASKS && sim->task[i]; i++)
		;
	if (i == SLUICE_SIM_TASKS) {
		kfree(task);
		return -ENOSPC;
	}
	spin_lock(&sim->task_lock);
	sim->task[i] = task;
	args = sim_describe(sim, task);
	sluice_gpu_task_init(sim->manager, &args, &decision);
	sim_apply(task, &decision);
	spin_unlock(&sim->task_lock);
	return 0;
}

int sim_task_bind(struct sim *sim, u32 tsg, u64 runlist)
{
	struct sim_task **slot = sim_slot(sim, tsg, runlist);
	struct sluice_gpu_task_decision decision;
	struct sluice_gpu_task args;

	if (!slot)
		return -ENOENT;
	spin_lock(&sim->task_lock);
	args = sim_describe(sim, *slot);
	sluice_gpu_bind(sim->manager, &args, &decision);
	sim_apply(*slot, &decision);
	(*slot)->bound = !decision.deny;
	(*slot)->tenant->refused += decision.deny;
	spin_unlock(&sim->task_lock);
	return 0;
}

int sim_task_timeslice(struct sim *sim, u32 tsg, u64 runlist, u64 us)
{
	struct sim_task **slot = sim_slot(sim, tsg, runlist);
	struct sluice_gpu_task_decision decision;
	struct sluice_gpu_task args;

	if (!slot)
		return -ENOENT;
	if (!us || us > SLUICE_GPU_TIMESLICE_MAX_US)
		return -EINVAL;
	spin_lock(&sim->task_lock);
	args = sim_describe(sim, *slot);
	args.requested_us = us;
	sluice_gpu_timeslice_control(sim->manager, &args, &decision);
	if (!decision.has_timeslice)
		(*slot)->timeslice_us = us;
	sim_apply(*slot, &decision);
	spin_unlock(&sim->task_lock);
	return 0;
}

/* Work for a task that was refused is dropped: its owner was told "busy". */
int sim_task_submit(struct sim *sim, u32 tsg, u64 runlist, u64 work_ns)
{
	struct sim_task **slot = sim_slot(sim, tsg, runlist);
	struct sim_job *job;
	u64 lowest = U64_MAX;
	int i;

	if (!slot)
		return -ENOENT;
	if (!work_ns || work_ns > 1000 * NSEC_PER_SEC)
		return -EINVAL;
	if (!(*slot)->bound) {
		(*slot)->tenant->refused++;
		return 0;
	}
	job = kzalloc(sizeof(*job), GFP_KERNEL);
	if (!job)
		return -ENOMEM;
	job->submitted_ns = sim_now(sim);
	job->left_ns = work_ns;
	spin_lock(&sim->task_lock);
	if (list_empty(&(*slot)->jobs)) {
		/*
		 * Who was idle has saved up no turns, and waits for those of this round
		 * that are still to come: a high task for one at most.
		 */
		for (i = 0; i < SLUICE_SIM_TASKS; i++) {
			struct sim_task *task = sim->task[i];

			if (task && task->runlist == runlist && !list_empty(&task->jobs))
				lowest = min(lowest, task->pass);
		}
		if (lowest != U64_MAX)
			(*slot)->pass = max((*slot)->pass,
					    lowest + (4 >> (*slot)->interleave) - 1);
	}
	list_add_tail(&job->node, &(*slot)->jobs);
	spin_unlock(&sim->task_lock);
	return 0;
}

static void sim_task_free(struct sim_task *task)
{
	struct sim_job *job, *next;

	list_for_each_entry_safe(job, next, &task->jobs, node)
		kfree(job);
	kfree(task);
}

int sim_task_destroy(struct sim *sim, u32 tsg, u64 runlist)
{
	struct sim_task **slot = sim_slot(sim, tsg, runlist);
	struct sim_task *task;
	struct sluice_gpu_task args;

	if (!slot)
		return -ENOENT;
	spin_lock(&sim->task_lock);
	task = *slot;
	args = sim_describe(sim, task);
	sluice_gpu_task_destroy(sim->manager, &args);
	*slot = NULL;
	if (sim->runlist[runlist].last == task)
		sim->runlist[runlist].last = NULL;
	spin_unlock(&sim->task_lock);
	sim_task_free(task);
	return 0;
}

static u32 sim_bucket(u64 ns)
{
	u32 octave = fls64(ns | 1) - 1;

	if (octave < 2)
		return ns;
	return octave * 4 + ((ns >> (octave - 2)) & 3);
}

static u64 sim_bucket_end(u32 bucket)
{
	if (bucket < 8)
		return bucket;
	return ((u64)(bucket % 4 + 5) << (bucket / 4 - 2)) - 1;
}

/* An upper bound of that quantile, at most a quarter above it; 0 without jobs. */
u64 sim_latency_quantile(const struct sim_tenant *tenant, u32 percent)
{
	u64 wanted = DIV_ROUND_UP_ULL(tenant->jobs * percent, 100), seen = 0;
	u32 i;

	for (i = 0; wanted && i < SIM_BUCKETS; i++) {
		seen += tenant->bucket[i];
		if (seen >= wanted)
			return min(sim_bucket_end(i), tenant->latency_max_ns);
	}
	return 0;
}

static void sim_finish(struct sim_task *task, struct sim_job *job, u64 clock_ns)
{
	u64 latency = clock_ns - job->submitted_ns;

	task->tenant->jobs++;
	task->tenant->latency_sum_ns += latency;
	task->tenant->latency_max_ns = max(task->tenant->latency_max_ns, latency);
	task->tenant->bucket[sim_bucket(latency)]++;
	list_del(&job->node);
	kfree(job);
}

static struct sim_task *sim_next(struct sim *sim, u32 number)
{
	struct sim_runlist *runlist = &sim->runlist[number];
	struct sim_task *best = NULL;
	int i;

	if (runlist->last && runlist->turn_left_ns && !list_empty(&runlist->last->jobs))
		return runlist->last;
	for (i = 0; i < SLUICE_SIM_TASKS; i++) {
		struct sim_task *task = sim->task[i];

		if (task && task->runlist == number && !list_empty(&task->jobs) &&
		    (!best || task->pass < best->pass))
			best = task;
	}
	if (!best)
		return NULL;
	best->pass += 4 >> best->interleave;
	runlist->turn_left_ns = best->timeslice_us * NSEC_PER_USEC;
	if (runlist->last != best)
		runlist->clock_ns += SIM_SWITCH_NS;
	runlist->last = best;
	return best;
}

/* One turn, or what of it comes before the simulation's clock. False: nothing to do. */
static bool sim_turn(struct sim *sim, u32 number)
{
	struct sim_runlist *runlist = &sim->runlist[number];
	u64 until = sim_now(sim), step;
	struct sim_task *task;
	struct sim_job *job;

	if (runlist->clock_ns >= until)
		return false;
	task = sim_next(sim, number);
	if (!task) {
		runlist->clock_ns = until;
		return false;
	}
	job = list_first_entry(&task->jobs, struct sim_job, node);
	if (runlist->clock_ns >= until)
		return false;
	step = min3(job->left_ns, runlist->turn_left_ns, until - runlist->clock_ns);
	runlist->clock_ns += step;
	runlist->turn_left_ns -= step;
	job->left_ns -= step;
	if (!job->left_ns)
		sim_finish(task, job, runlist->clock_ns);
	return true;
}

/* Brings all runlists to the simulation's clock. */
void sim_tasks_run(struct sim *sim)
{
	u32 number;

	for (number = 0; number < SLUICE_SIM_RUNLISTS; number++) {
		bool more;

		do {
			spin_lock(&sim->task_lock);
			more = sim_turn(sim, number);
			spin_unlock(&sim->task_lock);
			cond_resched();
		} while (more);
	}
}

/* The callback of policies: ends a task's turn. Runs on a worker of its own. */
int sim_preempt(void *data, u32 number, u32 tsg, const struct cgroup *within)
{
	struct sim *sim = data;
	struct sim_task **slot;
	int err = 0;

	spin_lock(&sim->task_lock);
	slot = sim_slot(sim, tsg, number);
	if (!slot)
		err = -ESRCH;
	else if (within && !cgroup_is_descendant((*slot)->tenant->owner.cgroup,
						 (struct cgroup *)within))
		err = -EPERM;
	else if (sim->runlist[number].last == *slot)
		sim->runlist[number].turn_left_ns = 0;
	sim->preemptions += !err;
	spin_unlock(&sim->task_lock);
	return err;
}

void sim_tasks_exit(struct sim *sim)
{
	int i;

	for (i = 0; i < SLUICE_SIM_TASKS; i++) {
		if (sim->task[i])
			sim_task_free(sim->task[i]);
	}
}
