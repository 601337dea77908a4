/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What GPU policies (BPF programs) and the module sluice_gpu say to each other. Both
 * include this file; docs/reference/policy-interface.md is generated from it.
 *
 * A policy answers a hook in two ways: by its return value, and by requests that it
 * records through the sluice_bpf_* functions. Nothing happens while it runs. After it
 * has returned, the module checks what was recorded and carries it out at most once, or
 * not at all; then the memory manager does what it would have done without a policy.
 * Two different requests of one kind in one call void the decision; two equal ones
 * count as one.
 *
 * Units: pages are 4 KiB, blocks and chunks 2 MiB (512 pages), times as named.
 */
#ifndef SLUICE_INTF_H
#define SLUICE_INTF_H

#ifdef __KERNEL__
#include <linux/types.h>
#define SLUICE_CORE
#define __ksym /* programs find these among the kernel's functions; the module has them */
#else
#define SLUICE_CORE __attribute__((preserve_access_index))
#endif

/* The version of everything below; `version` of the ops must say the same. */
#define SLUICE_GPU_ABI 2
#define SLUICE_GPU_NAME_SIZE 32
#define SLUICE_GPU_BLOCK_PAGES 512
/* `gpu` of an ops object that serves every GPU. */
#define SLUICE_GPU_ANY 0xffffffffU
/* `gpu` in the identity of a hook that is about main memory: a processor faulted. */
#define SLUICE_GPU_HOST 0xfffffffeU
/* Bounds of sluice_bpf_timeslice (microseconds) and sluice_bpf_interleave. */
#define SLUICE_GPU_TIMESLICE_MAX_US 1000000
#define SLUICE_GPU_INTERLEAVE_MAX 2
/* Bounds and default of `budget_ns`, the longest that one call may take. */
#define SLUICE_GPU_BUDGET_MIN_NS 1000
#define SLUICE_GPU_BUDGET_MAX_NS 1000000
#define SLUICE_GPU_BUDGET_DEFAULT_NS 50000
/* Bounds and default of `fault_percent`, what faults may rise to while on trial. */
#define SLUICE_GPU_FAULTS_MIN_PERCENT 101
#define SLUICE_GPU_FAULTS_MAX_PERCENT 100000
#define SLUICE_GPU_FAULTS_DEFAULT_PERCENT 400

struct cgroup;

/* What a hook returns. */
enum sluice_gpu_verdict {
	/* Carry out what was requested; if nothing was, do what is done without a policy. */
	SLUICE_GPU_DEFAULT = 0,
	/* page_prefetch: walk the native tree and ask page_prefetch_iter at each node. */
	SLUICE_GPU_ITERATE = 1,
	/* block_access: leave the chunk where it is, if that is the used list. */
	SLUICE_GPU_KEEP = 2,
};

/* Where a chunk is. Native eviction takes the head of unused, then the head of used. */
enum sluice_gpu_list {
	SLUICE_GPU_LIST_NONE = 0,
	SLUICE_GPU_LIST_USED = 1,
	SLUICE_GPU_LIST_UNUSED = 2,
};

enum sluice_gpu_position {
	SLUICE_GPU_HEAD = 1,
	SLUICE_GPU_TAIL = 2,
};

/* A tenant's class, as its owner has declared it to the memory manager. */
enum sluice_gpu_class {
	SLUICE_GPU_CLASS_NORMAL = 0,
	SLUICE_GPU_CLASS_GUARANTEED = 1,
	SLUICE_GPU_CLASS_PREEMPTIBLE = 2,
};

/* On whose behalf a hook is called: never the thread that happens to run it. */
struct sluice_gpu_identity {
	__u32 gpu;
	/* enum sluice_gpu_class */
	__u32 tenant_class;
	/* Names the address space among all that the manager has had. */
	__u64 va_space;
	/* The owner's cgroup on the unified hierarchy: the inode number of its folder. */
	__u64 cgroup_id;
	__u32 owner_tgid;
	__u32 reserved;
} SLUICE_CORE;

/*
 * page_prefetch: once for each faulted page that is being served.
 * page_prefetch_iter: after SLUICE_GPU_ITERATE, once for each node of the tree above it.
 */
struct sluice_gpu_prefetch_ctx {
	struct sluice_gpu_identity who;
	/* The manager's; also what keeps a program from making up a context of its own. */
	const void *priv;
	/* Address of the block divided by its size. */
	__u64 block;
	__u64 now_ns;
	/* The faulted page, counted from the block's first. */
	__u32 page;
	/* What may be asked for: this many pages from that one on. */
	__u32 max_first;
	__u32 max_pages;
	/* Pages of the block on the GPU, and pages that this batch of faults wants. */
	__u32 resident;
	__u32 faulted;
	/* Native rule: take a node if more than this percentage of it is occupied. */
	__u32 threshold;
	/* page_prefetch_iter only: the node, and its pages that are resident or wanted. */
	__u32 node_first;
	__u32 node_pages;
	__u32 node_occupied;
	__u32 reserved;
} SLUICE_CORE;

/*
 * block_activate: a chunk has got a block's memory and was put at the tail of used.
 * block_access: pages of a block that has its chunk were faulted in; natively it moves
 * to the tail of used. A hit is seen by no one: a GPU reports faults only.
 */
struct sluice_gpu_block_ctx {
	struct sluice_gpu_identity who;
	const void *priv;
	__u64 block;
	/* Counts up whenever the chunk gets another block. */
	__u64 generation;
	__u64 now_ns;
	/* The chunk: 0 to chunks - 1, so that an array can be indexed by it. */
	__u32 chunk;
	__u32 chunks;
	/* enum sluice_gpu_list */
	__u32 list;
	__u32 resident;
} SLUICE_CORE;

/* One chunk that could be evicted. */
struct sluice_gpu_candidate {
	struct sluice_gpu_identity who;
	const struct cgroup *cgroup;
	__u64 block;
	__u64 generation;
	__u32 chunk;
	__u32 list;
	__u32 resident;
	__u32 reserved;
} SLUICE_CORE;

/*
 * evict_prepare: no chunk is free and one has to be. `who` needs it; where a driver does
 * not say who, `va_space` is 0 and policies of a cgroup below the root are not asked. The
 * candidates are the first ones in native order.
 */
struct sluice_gpu_evict_ctx {
	struct sluice_gpu_identity who;
	const void *priv;
	__u64 now_ns;
	__u32 candidates;
	__u32 chunks;
	/* How many chunks each list has; a driver that does not count them: candidates of each. */
	__u32 used;
	__u32 unused;
} SLUICE_CORE;

/*
 * task_init: a group of channels (TSG) was made. bind: it is about to be scheduled for
 * the first time. timeslice_control: its owner asks for `requested_us`. task_destroy:
 * it goes; requests are refused.
 */
struct sluice_gpu_task_ctx {
	struct sluice_gpu_identity who;
	const void *priv;
	__u64 now_ns;
	__u64 timeslice_us;
	__u64 requested_us;
	/* A group is named by its runlist and its number there. */
	__u32 runlist;
	__u32 tsg;
	/* 0 graphics and compute, 1 copy. */
	__u32 engine;
	__u32 channels;
	__u32 interleave;
	__u32 reserved;
} SLUICE_CORE;

/*
 * What both kinds of policy end with: what it is attached to, and how it is judged. Set
 * by the loader.
 */
struct sluice_gpu_plain {
	/* SLUICE_GPU_ABI */
	__u32 version;
	/* 0 */
	__u32 flags;
	/* The GPU it serves, or SLUICE_GPU_ANY. */
	__u32 gpu;
	/* The longest that a call may take; 0 means SLUICE_GPU_BUDGET_DEFAULT_NS. */
	__u32 budget_ns;
	/* Serves owners in that cgroup or below it; 0 means all. */
	__u64 cgroup_id;
	/*
	 * Memory policies: what the GPU's faults may rise to in the time after attaching,
	 * in percent of those before; 0 means SLUICE_GPU_FAULTS_DEFAULT_PERCENT.
	 */
	__u32 fault_percent;
	__u32 reserved;
	/* Shown to people: letters, digits, - and _. */
	char name[SLUICE_GPU_NAME_SIZE];
};

/* The two kinds of policy. Every hook may be left out; what none serves is native. */
struct sluice_gpu_mem_ops {
	int (*page_prefetch)(struct sluice_gpu_prefetch_ctx *ctx);
	int (*page_prefetch_iter)(struct sluice_gpu_prefetch_ctx *ctx);
	int (*block_activate)(struct sluice_gpu_block_ctx *ctx);
	int (*block_access)(struct sluice_gpu_block_ctx *ctx);
	int (*evict_prepare)(struct sluice_gpu_evict_ctx *ctx);
	struct sluice_gpu_plain plain;
};

struct sluice_gpu_sched_ops {
	int (*task_init)(struct sluice_gpu_task_ctx *ctx);
	int (*bind)(struct sluice_gpu_task_ctx *ctx);
	int (*timeslice_control)(struct sluice_gpu_task_ctx *ctx);
	int (*task_destroy)(struct sluice_gpu_task_ctx *ctx);
	struct sluice_gpu_plain plain;
};

/*
 * Brings in `pages` pages from `first` on, beside the faulted one, and not what the
 * native rule would. 0 pages: the faulted page alone. In page_prefetch and
 * page_prefetch_iter; there the last node with a request wins.
 */
extern int sluice_bpf_prefetch(struct sluice_gpu_prefetch_ctx *ctx, __u32 first,
			       __u32 pages) __ksym;

/*
 * Puts the chunk at a position of a list. In block_activate and block_access. The head
 * of a list is refused in block_activate: what was just filled must not go next.
 */
extern int sluice_bpf_reorder(struct sluice_gpu_block_ctx *ctx, __u32 list,
			      __u32 position) __ksym;

/*
 * Gives a candidate: NULL if there is none of that number, or if it belongs to a tenant
 * outside the policy's cgroup. In evict_prepare.
 */
extern const struct sluice_gpu_candidate *
sluice_bpf_candidate(struct sluice_gpu_evict_ctx *ctx, __u32 index) __ksym;

/* Names the candidate to be evicted. In evict_prepare. */
extern int sluice_bpf_evict(struct sluice_gpu_evict_ctx *ctx, __u32 index) __ksym;

/* Sets a task's timeslice: 1 to SLUICE_GPU_TIMESLICE_MAX_US. Not in task_destroy. */
extern int sluice_bpf_timeslice(struct sluice_gpu_task_ctx *ctx, __u64 us) __ksym;

/* Sets how often a task is on its runlist: 0 low, 1 medium, 2 high. Not in task_destroy. */
extern int sluice_bpf_interleave(struct sluice_gpu_task_ctx *ctx, __u32 level) __ksym;

/* Lets a task be scheduled (1, native) or answers "busy, try again" (0). In bind. */
extern int sluice_bpf_admit(struct sluice_gpu_task_ctx *ctx, __u32 admit) __ksym;

/*
 * Takes the GPU from a task, after the hook and outside its locks. The task stays
 * runnable. Refused if it belongs to a tenant outside the policy's cgroup. Not in
 * task_destroy.
 */
extern int sluice_bpf_preempt(struct sluice_gpu_task_ctx *ctx, __u32 runlist,
			      __u32 tsg) __ksym;

#endif /* SLUICE_INTF_H */
