/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a GPU memory manager or scheduler calls to have its decisions advised by
 * policies. The manager owns all state and all locks; sluice_gpu calls back only where
 * this file says so. With no policy attached a hook costs one patched-out branch.
 */
#ifndef SLUICE_GPU_H
#define SLUICE_GPU_H

#include <linux/jump_label.h>
#include <linux/types.h>

#include "../../bpf/intf.h"

struct cgroup;
struct sluice_gpu_manager;

enum sluice_gpu_hook {
	SLUICE_GPU_PAGE_PREFETCH,
	SLUICE_GPU_PAGE_PREFETCH_ITER,
	SLUICE_GPU_BLOCK_ACTIVATE,
	SLUICE_GPU_BLOCK_ACCESS,
	SLUICE_GPU_EVICT_PREPARE,
	SLUICE_GPU_TASK_INIT,
	SLUICE_GPU_BIND,
	SLUICE_GPU_TIMESLICE_CONTROL,
	SLUICE_GPU_TASK_DESTROY,
	SLUICE_GPU_HOOKS,
};

/* What came of one hook call. Each call has exactly one outcome. */
enum sluice_gpu_outcome {
	/* The request was carried out. */
	SLUICE_GPU_APPLIED,
	/* Nothing was requested. */
	SLUICE_GPU_NOTHING,
	/* It was so already. */
	SLUICE_GPU_REPEAT,
	/* What it was about had changed or gone before it could be carried out. */
	SLUICE_GPU_STALE,
	/* Two different requests of one kind. */
	SLUICE_GPU_CONFLICT,
	/* A return value or a request that this hook does not have. */
	SLUICE_GPU_BAD_ACTION,
	/* A page, position, time or level out of range. */
	SLUICE_GPU_BAD_RANGE,
	/* Something of a tenant that is outside the policy's scope. */
	SLUICE_GPU_BAD_IDENTITY,
	SLUICE_GPU_OUTCOMES,
};

/* An owner, as hooks are told of it. The manager keeps the cgroup referenced. */
struct sluice_gpu_owner {
	struct sluice_gpu_identity id;
	struct cgroup *cgroup;
};

/* The most candidates that evict_prepare looks at. */
#define SLUICE_GPU_CANDIDATES 16

/**
 * struct sluice_gpu_manager_ops - what sluice_gpu asks a manager to do
 * @owner: the manager's module
 * @name: shown to people
 * @reorder: puts @object, which the manager gave to a block hook, at a position of a
 *	list. Called before that hook's entry point returns, under the caller's locks.
 *	0, -EALREADY (it is there), or -ESTALE (it has another block or is on no list).
 *	NULL: it has no memory, and calls no memory hook.
 * @preempt: takes the GPU from a task. Called from a worker, may sleep. 0, -ESRCH (no
 *	such task), or -EPERM (its owner is not in @within or below; NULL: anywhere).
 *	NULL: nothing can be preempted. One of the two has to be there.
 */
struct sluice_gpu_manager_ops {
	struct module *owner;
	const char *name;
	int (*reorder)(void *object, enum sluice_gpu_list list, enum sluice_gpu_position position);
	int (*preempt)(void *data, u32 runlist, u32 tsg, const struct cgroup *within);
};

/*
 * Gives an error pointer if @gpu has a manager already that does the same (-EEXIST): its
 * memory and its tasks may have one each. May sleep.
 */
struct sluice_gpu_manager *sluice_gpu_register_manager(const struct sluice_gpu_manager_ops *ops,
						       u32 gpu, void *data);

/* Returns when no callback runs any more. No hook may be running. May sleep. */
void sluice_gpu_unregister_manager(struct sluice_gpu_manager *manager);

/* Returns when all preemptions that were asked for have been tried. May sleep. */
void sluice_gpu_flush(struct sluice_gpu_manager *manager);

/*
 * Faults that the manager has served, by which memory policies are judged; to be called
 * for each batch, with or without a policy. @now_ns: the manager's clock, which never
 * goes back. Takes a spinlock of its own for a few instructions.
 */
void sluice_gpu_report_faults(struct sluice_gpu_manager *manager, u32 faults, u64 now_ns);

/* True for a hook that some policy serves. */
extern struct static_key_false sluice_gpu_keys[SLUICE_GPU_HOOKS];

static __always_inline bool sluice_gpu_has(enum sluice_gpu_hook hook)
{
	return static_branch_unlikely(&sluice_gpu_keys[hook]);
}

/* A region of a block, in pages. */
struct sluice_gpu_region {
	u32 first;
	u32 pages;
};

/**
 * struct sluice_gpu_prefetch - a fault for which pages may be brought in beside it
 * @owner: whose address space it is in
 * @block: the block
 * @now_ns: the manager's clock
 * @page: the faulted page
 * @max: what may be brought in
 * @resident: pages on the GPU
 * @faulted: pages wanted by this batch
 * @threshold: percentage of the native rule
 * @occupied: counts the pages of a region that are resident or wanted
 * @data: handed to @occupied
 */
struct sluice_gpu_prefetch {
	const struct sluice_gpu_owner *owner;
	u64 block;
	u64 now_ns;
	u32 page;
	struct sluice_gpu_region max;
	u32 resident;
	u32 faulted;
	u32 threshold;
	u32 (*occupied)(const void *data, struct sluice_gpu_region region);
	const void *data;
};

/**
 * struct sluice_gpu_block - a block that has a chunk
 * @owner: whose it is
 * @object: handed to @reorder
 */
struct sluice_gpu_block {
	const struct sluice_gpu_owner *owner;
	void *object;
	u64 block;
	u64 generation;
	u64 now_ns;
	u32 chunk;
	u32 chunks;
	enum sluice_gpu_list list;
	u32 resident;
};

/**
 * struct sluice_gpu_evict - a search for a chunk to evict
 * @owner: who needs it
 * @candidate: the first chunks in native order
 */
struct sluice_gpu_evict {
	const struct sluice_gpu_owner *owner;
	const struct sluice_gpu_candidate *candidate;
	u64 now_ns;
	u32 candidates;
	u32 chunks;
	u32 used;
	u32 unused;
};

/* A task (TSG), as it is now. */
struct sluice_gpu_task {
	const struct sluice_gpu_owner *owner;
	u64 now_ns;
	u64 timeslice_us;
	u64 requested_us;
	u32 runlist;
	u32 tsg;
	u32 engine;
	u32 channels;
	u32 interleave;
};

/* What a policy has decided on a task; a false flag means: as without a policy. */
struct sluice_gpu_task_decision {
	bool has_timeslice;
	bool has_interleave;
	bool deny;
	u32 interleave;
	u64 timeslice_us;
};

/*
 * The hooks. None sleeps; all may be called under a spinlock. `manager` is what
 * registering gave. Each is a no-op that says "native" unless sluice_gpu_has(hook).
 */

/* True: bring in `region` (maybe of 0 pages) beside the faulted page. False: native. */
bool sluice_gpu_page_prefetch(struct sluice_gpu_manager *manager,
			      const struct sluice_gpu_prefetch *args,
			      struct sluice_gpu_region *region);

/* The chunk stands at the tail of used; a policy may move it through @reorder. */
void sluice_gpu_block_activate(struct sluice_gpu_manager *manager,
			       const struct sluice_gpu_block *args);

/* True: what the policy wanted has been done. False: move it to the tail of used. */
bool sluice_gpu_block_access(struct sluice_gpu_manager *manager,
			     const struct sluice_gpu_block *args);

/* The candidate to evict, or -1 for the native choice. */
int sluice_gpu_evict_prepare(struct sluice_gpu_manager *manager,
			     const struct sluice_gpu_evict *args);

void sluice_gpu_task_init(struct sluice_gpu_manager *manager, const struct sluice_gpu_task *args,
			  struct sluice_gpu_task_decision *decision);
void sluice_gpu_bind(struct sluice_gpu_manager *manager, const struct sluice_gpu_task *args,
		     struct sluice_gpu_task_decision *decision);
void sluice_gpu_timeslice_control(struct sluice_gpu_manager *manager,
				  const struct sluice_gpu_task *args,
				  struct sluice_gpu_task_decision *decision);
void sluice_gpu_task_destroy(struct sluice_gpu_manager *manager,
			     const struct sluice_gpu_task *args);

#endif /* SLUICE_GPU_H */
