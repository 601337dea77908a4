// SPDX-License-Identifier: GPL-2.0-only
/*
 * The driver's core as a scheduler that asks policies of sluice_gpu: the part that has the
 * kernel's headers. Keeps which groups of channels there are and whose, asks the hooks,
 * and has a group preempted that a policy names.
 *
 * Order of locks: those of sluice_gpu, those of the core, sluice_rm_lock. Hooks come with
 * the core's held; a preemption with one of sluice_gpu's. Hence a GPU is registered, which
 * takes sluice_gpu's, under a lock of its own that no hook takes.
 *
 * sluice_gpu is looked for when a GPU comes into use, and let go with the last one.
 */
#include <linux/cgroup.h>
#include <linux/hashtable.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "nv-linux.h"

#include "sluice/sluice_gpu.h"
#include "sluice_rm.h"

struct sluice_rm_gpu {
	struct sluice_gpu_manager *manager;
	nv_state_t *nv;
	u32 number;
};

/* A group of channels, from task_init to task_destroy. */
struct sluice_rm_entry {
	struct hlist_node node;
	struct sluice_gpu_owner owner;
	/* As the core told of it last: where it runs may be settled after it was made. */
	struct sluice_task task;
	u64 serial;
	/* Some policy has been asked about it. */
	bool shown;
	/* It was let on its runlist once. */
	bool bound;
};

/* All that is called of sluice_gpu. */
#define SLUICE_RM_SYMBOLS(with)             \
	with(sluice_gpu_register_manager)   \
	with(sluice_gpu_unregister_manager) \
	with(sluice_gpu_task_init)          \
	with(sluice_gpu_bind)               \
	with(sluice_gpu_timeslice_control)  \
	with(sluice_gpu_task_destroy)       \
	with(sluice_gpu_keys)
#define SLUICE_RM_MEMBER(symbol) typeof(&symbol) symbol;
static struct {
	SLUICE_RM_SYMBOLS(SLUICE_RM_MEMBER)
} sluice_rm;

/* Over the number of GPUs, and so over whether sluice_gpu is held. */
static DEFINE_MUTEX(sluice_rm_gpus_lock);
static u32 sluice_rm_count;
/* Over all below, and over a GPU while one of its hooks runs. */
static DEFINE_MUTEX(sluice_rm_lock);
static struct sluice_rm_gpu *sluice_rm_gpus[NV_MAX_DEVICES];
static DEFINE_HASHTABLE(sluice_rm_entries, 8);
static u64 sluice_rm_last;

typedef void (*sluice_rm_hook)(struct sluice_gpu_manager *manager,
			       const struct sluice_gpu_task *args,
			       struct sluice_gpu_task_decision *decision);

static void sluice_rm_let_go(void)
{
#define SLUICE_RM_PUT(symbol)              \
	do {                               \
		if (sluice_rm.symbol)      \
			symbol_put(symbol); \
		sluice_rm.symbol = NULL;   \
	} while (0);
	SLUICE_RM_SYMBOLS(SLUICE_RM_PUT)
}

static bool sluice_rm_connect(void)
{
	bool complete = true;

#define SLUICE_RM_GET(symbol) complete &= !!(sluice_rm.symbol = symbol_get(symbol));
	SLUICE_RM_SYMBOLS(SLUICE_RM_GET)
	if (!complete)
		sluice_rm_let_go();
	return complete;
}

static struct sluice_rm_entry *sluice_rm_find(const void *group)
{
	struct sluice_rm_entry *entry;

	hash_for_each_possible(sluice_rm_entries, entry, node, (unsigned long)group) {
		if (entry->task.group == group)
			return entry;
	}
	return NULL;
}

/* Copies what names the victim, if it may be one. */
static int sluice_rm_choose(u32 gpu, u32 runlist, u32 tsg, const struct cgroup *within,
			    struct sluice_victim *victim)
{
	struct sluice_rm_entry *entry;
	int bucket;

	hash_for_each(sluice_rm_entries, bucket, entry, node) {
		if (!entry->shown || entry->task.gpu != gpu || entry->task.runlist != runlist ||
		    entry->task.tsg != tsg)
			continue;
		if (within &&
		    !cgroup_is_descendant(entry->owner.cgroup, (struct cgroup *)within))
			return -EPERM;
		*victim = (struct sluice_victim){
			.group = entry->task.group,
			.serial = entry->serial,
			.client = entry->task.client,
			.object = entry->task.object,
		};
		return 0;
	}
	return -ESRCH;
}

static int sluice_rm_preempt(void *data, u32 runlist, u32 tsg, const struct cgroup *within)
{
	struct sluice_rm_gpu *gpu = data;
	struct sluice_victim victim;
	nvidia_stack_t *sp = NULL;
	NV_STATUS status;
	int err;

	mutex_lock(&sluice_rm_lock);
	err = sluice_rm_choose(gpu->number, runlist, tsg, within, &victim);
	mutex_unlock(&sluice_rm_lock);
	if (err)
		return err;
	if (nv_kmem_cache_alloc_stack(&sp))
		return -ENOMEM;
	status = rm_sluice_preempt(sp, gpu->nv, &victim);
	nv_kmem_cache_free_stack(sp);
	return status == NV_OK ? 0 : -ESRCH;
}

static const struct sluice_gpu_manager_ops sluice_rm_ops = {
	.owner = THIS_MODULE,
	.name = "nvidia",
	.preempt = sluice_rm_preempt,
};

void nv_sluice_add_gpu(nv_state_t *nv)
{
	struct sluice_rm_gpu *gpu;
	u32 number;

	if (!rm_sluice_number(nv, &number) || number >= NV_MAX_DEVICES)
		return;
	mutex_lock(&sluice_rm_gpus_lock);
	if (sluice_rm_gpus[number] || (!sluice_rm_count && !sluice_rm_connect()))
		goto unlock;
	gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	if (gpu) {
		gpu->nv = nv;
		gpu->number = number;
		gpu->manager =
			sluice_rm.sluice_gpu_register_manager(&sluice_rm_ops, number, gpu);
		if (!IS_ERR(gpu->manager)) {
			sluice_rm_count++;
			mutex_lock(&sluice_rm_lock);
			sluice_rm_gpus[number] = gpu;
			mutex_unlock(&sluice_rm_lock);
			goto unlock;
		}
		pr_warn("sluice: no scheduling policies for GPU %u (%ld)\n", number,
			PTR_ERR(gpu->manager));
		kfree(gpu);
	}
	if (!sluice_rm_count)
		sluice_rm_let_go();
unlock:
	mutex_unlock(&sluice_rm_gpus_lock);
}

void nv_sluice_remove_gpu(nv_state_t *nv)
{
	struct sluice_rm_gpu *gpu = NULL;
	u32 number;

	mutex_lock(&sluice_rm_gpus_lock);
	mutex_lock(&sluice_rm_lock);
	for (number = 0; number < NV_MAX_DEVICES; number++) {
		if (sluice_rm_gpus[number] && sluice_rm_gpus[number]->nv == nv) {
			gpu = sluice_rm_gpus[number];
			sluice_rm_gpus[number] = NULL;
			break;
		}
	}
	mutex_unlock(&sluice_rm_lock);
	if (gpu) {
		/* Waits for preemptions, which need the core as it still is. */
		sluice_rm.sluice_gpu_unregister_manager(gpu->manager);
		kfree(gpu);
		if (!--sluice_rm_count)
			sluice_rm_let_go();
	}
	mutex_unlock(&sluice_rm_gpus_lock);
}

/* The caller is whose group it is. NULL: no policy will be asked about it. */
static struct sluice_rm_entry *sluice_rm_new(const struct sluice_task *task)
{
	struct sluice_rm_entry *entry = kzalloc(sizeof(*entry), GFP_KERNEL);
	struct cgroup *cgroup;

	if (!entry)
		return NULL;
	rcu_read_lock();
	cgroup = task_dfl_cgroup(current);
	if (!cgroup_tryget(cgroup))
		cgroup = NULL;
	rcu_read_unlock();
	if (!cgroup) {
		kfree(entry);
		return NULL;
	}
	entry->owner.cgroup = cgroup;
	entry->owner.id.gpu = task->gpu;
	entry->owner.id.cgroup_id = cgroup_id(cgroup);
	entry->owner.id.owner_tgid = task_tgid_nr(current);
	entry->task = *task;
	entry->serial = ++sluice_rm_last;
	hash_add(sluice_rm_entries, &entry->node, (unsigned long)task->group);
	return entry;
}

static void sluice_rm_forget(struct sluice_rm_entry *entry)
{
	hash_del(&entry->node);
	cgroup_put(entry->owner.cgroup);
	kfree(entry);
}

static struct sluice_gpu_task sluice_rm_args(const struct sluice_rm_entry *entry)
{
	return (struct sluice_gpu_task){
		.owner = &entry->owner,
		.now_ns = ktime_get_ns(),
		.timeslice_us = entry->task.timeslice_us,
		.requested_us = entry->task.requested_us,
		.runlist = entry->task.runlist,
		.tsg = entry->task.tsg,
		.engine = entry->task.engine,
		.channels = entry->task.channels,
		.interleave = entry->task.interleave,
	};
}

/* `decision` is left alone unless a policy has decided. */
static void sluice_rm_ask(struct sluice_rm_entry *entry, enum sluice_gpu_hook hook,
			  sluice_rm_hook call, const struct sluice_task *task,
			  struct sluice_decision *decision)
{
	struct sluice_gpu_task_decision decided = {};
	struct sluice_gpu_task args;

	entry->task = *task;
	if (!static_key_enabled(&(*sluice_rm.sluice_gpu_keys)[hook]))
		return;
	entry->shown = true;
	args = sluice_rm_args(entry);
	call(sluice_rm_gpus[task->gpu]->manager, &args, &decided);
	*decision = (struct sluice_decision){
		.deny = decided.deny,
		.has_timeslice = decided.has_timeslice,
		.has_interleave = decided.has_interleave,
		.interleave = decided.interleave,
		.timeslice_us = decided.timeslice_us,
	};
}

static bool sluice_rm_serves(u32 gpu)
{
	return gpu < NV_MAX_DEVICES && sluice_rm_gpus[gpu];
}

void NV_API_CALL nv_sluice_task_init(const struct sluice_task *task,
				     struct sluice_decision *decision)
{
	struct sluice_rm_entry *entry;

	memset(decision, 0, sizeof(*decision));
	mutex_lock(&sluice_rm_lock);
	/* One whose end the core did not get to tell, in the same place. */
	entry = sluice_rm_find(task->group);
	if (entry)
		sluice_rm_forget(entry);
	if (sluice_rm_serves(task->gpu)) {
		entry = sluice_rm_new(task);
		if (entry)
			sluice_rm_ask(entry, SLUICE_GPU_TASK_INIT, sluice_rm.sluice_gpu_task_init,
				      task, decision);
	}
	mutex_unlock(&sluice_rm_lock);
}

void NV_API_CALL nv_sluice_bind(const struct sluice_task *task, struct sluice_decision *decision)
{
	struct sluice_rm_entry *entry;

	memset(decision, 0, sizeof(*decision));
	mutex_lock(&sluice_rm_lock);
	entry = sluice_rm_serves(task->gpu) ? sluice_rm_find(task->group) : NULL;
	if (entry && !entry->bound) {
		sluice_rm_ask(entry, SLUICE_GPU_BIND, sluice_rm.sluice_gpu_bind, task, decision);
		entry->bound = !decision->deny;
	}
	mutex_unlock(&sluice_rm_lock);
}

void NV_API_CALL nv_sluice_timeslice(const struct sluice_task *task,
				     struct sluice_decision *decision)
{
	struct sluice_rm_entry *entry;

	memset(decision, 0, sizeof(*decision));
	mutex_lock(&sluice_rm_lock);
	entry = sluice_rm_serves(task->gpu) ? sluice_rm_find(task->group) : NULL;
	if (entry)
		sluice_rm_ask(entry, SLUICE_GPU_TIMESLICE_CONTROL,
			      sluice_rm.sluice_gpu_timeslice_control, task, decision);
	mutex_unlock(&sluice_rm_lock);
}

void NV_API_CALL nv_sluice_task_destroy(const void *group)
{
	struct sluice_rm_entry *entry;
	struct sluice_gpu_task args;

	mutex_lock(&sluice_rm_lock);
	entry = sluice_rm_find(group);
	if (entry) {
		args = sluice_rm_args(entry);
		/* The GPU may have been taken away before. */
		if (sluice_rm_serves(entry->task.gpu))
			sluice_rm.sluice_gpu_task_destroy(sluice_rm_gpus[entry->task.gpu]->manager,
							  &args);
		sluice_rm_forget(entry);
	}
	mutex_unlock(&sluice_rm_lock);
}

NvBool NV_API_CALL nv_sluice_is_there(const struct sluice_victim *victim)
{
	struct sluice_rm_entry *entry;
	bool is_there;

	mutex_lock(&sluice_rm_lock);
	entry = sluice_rm_find(victim->group);
	is_there = entry && entry->serial == victim->serial;
	mutex_unlock(&sluice_rm_lock);
	return is_there ? NV_TRUE : NV_FALSE;
}
