/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The trace format of /dev/sluice_sim. A trace is a sequence of records, little endian,
 * of 32 bytes each; a write holds whole records. The first is SLUICE_SIM_CONFIG.
 *
 * Times never go back. The simulated clock is the record's time plus all stalls so far.
 * Accesses of one time are concurrent: what they miss is served in batches of up to 256
 * pages. A read gives lines of `name value`, after serving what is pending.
 */
#ifndef SLUICE_SIM_H
#define SLUICE_SIM_H

#include <linux/types.h>

#define SLUICE_SIM_TENANTS 64
#define SLUICE_SIM_CHUNKS_MAX 65536
#define SLUICE_SIM_TASKS 256
#define SLUICE_SIM_RUNLISTS 8

struct sluice_sim_record {
	__u64 time_ns;
	/* enum sluice_sim_kind */
	__u16 kind;
	/* 0 to SLUICE_SIM_TENANTS - 1 */
	__u16 tenant;
	__u32 a;
	__u64 b;
	__u64 c;
};

enum sluice_sim_kind {
	/* a: chunks of 2 MiB; b: bytes per second of the link, 0 for 25e9; c: GPU number */
	SLUICE_SIM_CONFIG = 1,
	/* a: process; b: cgroup id, 0 for the writer's; c: enum sluice_gpu_class */
	SLUICE_SIM_TENANT = 2,
	/* a: pages; b: first page of the address space. No block may have memory already. */
	SLUICE_SIM_ALLOC = 3,
	/* as ALLOC; whole allocations only */
	SLUICE_SIM_FREE = 4,
	/* The GPU touches them. a: pages; b: first page; c: 1 if it writes */
	SLUICE_SIM_ACCESS = 5,
	/* The processor takes them back. a: pages; b: first page */
	SLUICE_SIM_TAKE = 6,
	/* a: number of the task on its runlist; b: runlist; c: engine */
	SLUICE_SIM_TASK = 7,
	/* a, b: the task */
	SLUICE_SIM_BIND = 8,
	/* a, b: the task; c: microseconds that it asks for */
	SLUICE_SIM_TIMESLICE = 9,
	/* a, b: the task; c: nanoseconds of work */
	SLUICE_SIM_SUBMIT = 10,
	/* a, b: the task */
	SLUICE_SIM_DESTROY = 11,
	/* Nothing; lets time pass. */
	SLUICE_SIM_TICK = 12,
};

#endif /* SLUICE_SIM_H */
