/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef SLUICE_GPU_INTERNAL_H
#define SLUICE_GPU_INTERNAL_H

#include <linux/atomic.h>
#include <linux/bpf.h>
#include <linux/btf.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/workqueue.h>

#include "sluice_gpu.h"

/* Newer kernels have no such flag: arguments are trusted there anyway. */
#ifndef KF_TRUSTED_ARGS
#define KF_TRUSTED_ARGS 0
#endif

#define SLUICE_MAX_ATTACHMENTS 32
/* A window of calls of one hook, and how many of them may be over budget or wrong. */
#define SLUICE_WINDOW_CALLS 1024
#define SLUICE_WINDOW_SLOW 16
#define SLUICE_WINDOW_WRONG 64

/*
 * The trial of a memory policy: its GPU's faults in windows of the manager's clock. A
 * window of fewer faults than that says nothing.
 */
#define SLUICE_FAULT_WINDOW_NS (10 * NSEC_PER_MSEC)
#define SLUICE_FAULT_WINDOW_LEAST 16
/* What was before: the mean of the last windows, if there are enough of them. */
#define SLUICE_FAULT_WINDOWS_BEFORE 8
#define SLUICE_FAULT_WINDOWS_NEEDED 4
/* How long a policy is on trial, and how many windows in a row bypass it. */
#define SLUICE_FAULT_WINDOWS_TRIAL 32
#define SLUICE_FAULT_WINDOWS_OVER 4

enum sluice_type {
	SLUICE_TYPE_MEM,
	SLUICE_TYPE_SCHED,
};

enum sluice_bypass {
	SLUICE_BYPASS_NONE,
	SLUICE_BYPASS_SLOW,
	SLUICE_BYPASS_WRONG,
	SLUICE_BYPASS_FAULTS,
};

struct sluice_hook_stats {
	u64 calls;
	u64 time_ns;
	u64 max_ns;
	u64 outcome[SLUICE_GPU_OUTCOMES];
};

struct sluice_stats {
	struct sluice_hook_stats hook[SLUICE_GPU_HOOKS];
};

/*
 * The plain members that both kinds of ops end with, in one place of our own: the ops
 * themselves belong to BPF and are read through these copies.
 */
struct sluice_scope {
	u32 gpu;
	u32 budget_ns;
	u32 fault_percent;
	u64 cgroup_id;
	/* Referenced while attached; NULL: every owner. */
	struct cgroup *cgroup;
	char name[SLUICE_GPU_NAME_SIZE];
};

/* What led to a bypass. */
struct sluice_charge {
	/* The call: its hook and its time. */
	u64 ns;
	enum sluice_gpu_hook hook;
	/* Or the window: its faults, and the mean of those before. */
	u32 faults;
	u32 before;
};

/* The calls of a hook since these were last set to 0. */
struct sluice_window {
	atomic_t calls;
	atomic_t slow;
	atomic_t wrong;
};

/**
 * struct sluice_attachment - a policy that is attached, from .reg to .unreg
 * @ops: what to call; changes by .update
 * @hooks: bit per hook that @ops has
 * @bypass: enum sluice_bypass; once set the policy is called no more
 * @window: by hook, so that many calls of one do not hide what another one does
 */
struct sluice_attachment {
	struct list_head node;
	u64 id;
	enum sluice_type type;
	const void __rcu *ops;
	struct sluice_scope scope;
	u32 hooks;
	u32 replaced;
	int bypass;
	/* Valid once bypass is set, and until sluice_replace, under sluice_lock, lifts it. */
	struct sluice_charge charge;
	spinlock_t charge_lock; /* of those who would set both; taken in any context */
	struct sluice_window window[SLUICE_GPU_HOOKS];
	struct sluice_stats __percpu *stats;
	struct work_struct bypass_work;
	/* Counted by the preempt worker, which runs on any CPU. */
	atomic64_t preempt_done;
	atomic64_t preempt_stale;
	atomic64_t preempt_refused;
};

/**
 * struct sluice_fault_rate - the faults of one manager, window by window
 * @judged: the memory policy that was attached last; on trial while @left is not 0
 * @baseline: faults in a window before it was attached; 0: too little was known
 * @over: windows in a row with too many
 */
struct sluice_fault_rate {
	spinlock_t lock; /* taken by report_faults in any context */
	u64 window_end_ns;
	u32 faults;
	u32 before[SLUICE_FAULT_WINDOWS_BEFORE];
	u32 windows;
	struct sluice_attachment *judged;
	u32 baseline;
	u32 left;
	u32 over;
};

struct sluice_gpu_manager {
	struct list_head node;
	const struct sluice_gpu_manager_ops *ops;
	void *data;
	u32 gpu;
	struct workqueue_struct *worker;
	struct sluice_fault_rate rate;
};

/* One hook call. Begun and ended in one read-side section of RCU. */
struct sluice_call {
	struct sluice_attachment *attachment;
	enum sluice_gpu_hook hook;
	u64 begin_ns;
	u64 spent_ns;
};

/* attach.c */
extern struct mutex sluice_lock;
extern struct list_head sluice_attachments;
int sluice_attach(enum sluice_type type, const void *ops, const struct sluice_scope *scope,
		  u32 hooks);
void sluice_detach(const void *ops);
int sluice_replace(const void *new_ops, const void *old_ops, const struct sluice_scope *scope,
		   u32 hooks);
const void *sluice_call_begin(struct sluice_call *call, enum sluice_gpu_hook hook,
			      const struct sluice_gpu_owner *owner);
void sluice_call_end(struct sluice_call *call, enum sluice_gpu_outcome outcome);
void sluice_sum_stats(const struct sluice_attachment *attachment, struct sluice_stats *sum);

/* Stops the clock; to be called as soon as a program has returned. */
static inline void sluice_call_returned(struct sluice_call *call)
{
	call->spent_ns = ktime_get_mono_fast_ns() - call->begin_ns;
}

void sluice_distrust(struct sluice_attachment *attachment, enum sluice_bypass reason,
		     const struct sluice_charge *charge);

/* main.c */
extern struct list_head sluice_managers;

/* trial.c, all with sluice_lock held */
void sluice_trial_begin(struct sluice_attachment *attachment);
void sluice_trial_again(struct sluice_attachment *attachment);
void sluice_trial_forget(const struct sluice_attachment *attachment);

/* ops.c */
int sluice_check_member(const struct btf_type *t, const struct btf_member *member,
			const struct bpf_prog *prog);
int sluice_init_member(const struct btf_type *t, const struct btf_member *member, void *kdata,
		       const void *udata, size_t plain_offset);
int sluice_validate(const struct sluice_gpu_plain *plain, u32 hooks);
int sluice_reg(enum sluice_type type, const void *ops, const struct sluice_gpu_plain *plain,
	       u32 hooks, const struct bpf_link *link);
int sluice_update(const void *new_ops, const void *old_ops, const struct sluice_gpu_plain *plain,
		  u32 hooks);
void sluice_scope_put(struct sluice_scope *scope);
extern const struct bpf_verifier_ops sluice_verifier_ops;

/* kfuncs.c */
int sluice_register_kfuncs(void);

/* mem.c, sched.c: register the types. Without BTF that fails, though insmod would not. */
int sluice_mem_register(void);
int sluice_sched_register(void);

/* netlink.c */
enum sluice_event {
	SLUICE_EVENT_ATTACHED,
	SLUICE_EVENT_REPLACED,
	SLUICE_EVENT_DETACHED,
	SLUICE_EVENT_BYPASSED,
};

int sluice_netlink_init(void);
void sluice_netlink_exit(void);
void sluice_announce(enum sluice_event event, const struct sluice_attachment *attachment);

#endif /* SLUICE_GPU_INTERNAL_H */
