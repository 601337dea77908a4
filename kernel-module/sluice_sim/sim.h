/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef SLUICE_SIM_INTERNAL_H
#define SLUICE_SIM_INTERNAL_H

#include <linux/bitmap.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>

#include "sluice_gpu.h"
#include "sluice_sim.h"

#define SIM_BLOCK_PAGES SLUICE_GPU_BLOCK_PAGES
#define SIM_PAGE_BYTES 4096
/* The native rule of NVIDIA's UVM: faults count as 64 KiB, nodes above 51 % are taken. */
#define SIM_GRANULE_PAGES 16
#define SIM_THRESHOLD 51
#define SIM_BATCH_FAULTS 256

/* The cost model. Its ratios matter, not its sum: see docs/explanation/policies.md. */
#define SIM_LINK_BYTES_PER_S 25000000000ULL
#define SIM_BATCH_NS 20000
#define SIM_BLOCK_NS 5000
#define SIM_EVICT_NS 10000
#define SIM_SWITCH_NS 20000
#define SIM_TIMESLICE_US 2048

/* Latencies: four buckets for each power of two of nanoseconds. */
#define SIM_BUCKETS 256

struct sim_tenant {
	bool known;
	struct sluice_gpu_owner owner;
	struct xarray blocks;
	u64 hits;
	u64 faults;
	u64 pages_in;
	u64 pages_out;
	u64 evictions;
	u64 stall_ns;
	u64 jobs;
	u64 refused;
	u64 latency_sum_ns;
	u64 latency_max_ns;
	u32 bucket[SIM_BUCKETS];
};

struct sim_block;

/* Memory of one block. Which list it is on changes under list_lock. */
struct sim_chunk {
	struct list_head node;
	struct sim_block *block;
	u64 generation;
	u32 index;
	enum sluice_gpu_list list;
	bool pinned;
};

struct sim_block {
	struct sim_tenant *tenant;
	struct sim_chunk *chunk;
	struct list_head batch;
	u64 number;
	struct sluice_gpu_region valid;
	DECLARE_BITMAP(resident, SIM_BLOCK_PAGES);
	DECLARE_BITMAP(dirty, SIM_BLOCK_PAGES);
	DECLARE_BITMAP(faulted, SIM_BLOCK_PAGES);
	/* Resident, or in a granule that was faulted. */
	DECLARE_BITMAP(occupied, SIM_BLOCK_PAGES);
	DECLARE_BITMAP(writes, SIM_BLOCK_PAGES);
};

struct sim_job {
	struct list_head node;
	u64 submitted_ns;
	u64 left_ns;
};

struct sim_task {
	struct sim_tenant *tenant;
	struct list_head jobs;
	u32 runlist;
	u32 tsg;
	u32 engine;
	u32 interleave;
	u64 timeslice_us;
	/* Turns that it has had, each weighed by its interleave level. */
	u64 pass;
	bool bound;
};

struct sim_runlist {
	u64 clock_ns;
	struct sim_task *last;
	u64 turn_left_ns;
};

/* One simulated GPU: from the CONFIG record to the last close of its file. */
struct sim {
	struct mutex lock; /* one read or write of the file at a time */
	struct sluice_gpu_manager *manager;
	/* The next read is the end of the file. */
	bool reported;
	u32 gpu;
	u64 link_bytes_per_s;
	u64 time_ns;
	u64 stall_ns;

	/* Chunks; as in a driver, hooks that see the lists are called with it held. */
	spinlock_t list_lock;
	struct list_head free;
	struct list_head used;
	struct list_head unused;
	u32 used_count;
	u32 unused_count;
	u32 chunk_count;
	struct sim_chunk *chunks;
	struct sluice_gpu_candidate candidate[SLUICE_GPU_CANDIDATES];

	struct list_head batch;
	u32 batch_faults;
	u64 batches;
	u64 evictions;

	/* Tasks; taken by the preempt callback too. */
	spinlock_t task_lock;
	struct sim_task *task[SLUICE_SIM_TASKS];
	struct sim_runlist runlist[SLUICE_SIM_RUNLISTS];
	u64 preemptions;

	struct sim_tenant tenant[SLUICE_SIM_TENANTS];
};

static inline u64 sim_now(const struct sim *sim)
{
	return sim->time_ns + sim->stall_ns;
}

/* memory.c */
int sim_memory_init(struct sim *sim, u32 chunks);
void sim_memory_exit(struct sim *sim);
int sim_alloc(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages);
int sim_free(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages);
int sim_access(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages, bool write);
int sim_take(struct sim *sim, struct sim_tenant *tenant, u64 first, u32 pages);
void sim_serve_batch(struct sim *sim);
int sim_reorder(void *object, enum sluice_gpu_list list, enum sluice_gpu_position position);

u64 sim_evict(struct sim *sim, struct sim_block *block);

/* prefetch.c; probes look at it, as at sim_evict */
void sim_prefetch(struct sim *sim, struct sim_block *block, unsigned long *mask);

/* tasks.c */
int sim_task_create(struct sim *sim, struct sim_tenant *tenant, u32 tsg, u64 runlist, u64 engine);
int sim_task_bind(struct sim *sim, u32 tsg, u64 runlist);
int sim_task_timeslice(struct sim *sim, u32 tsg, u64 runlist, u64 us);
int sim_task_submit(struct sim *sim, u32 tsg, u64 runlist, u64 work_ns);
int sim_task_destroy(struct sim *sim, u32 tsg, u64 runlist);
void sim_tasks_run(struct sim *sim);
void sim_tasks_exit(struct sim *sim);
int sim_preempt(void *data, u32 runlist, u32 tsg, const struct cgroup *within);
u64 sim_latency_quantile(const struct sim_tenant *tenant, u32 percent);

#endif /* SLUICE_SIM_INTERNAL_H */
