/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the driver's core (sluice_core.c, compiled without the kernel's headers) and its
 * kernel side (sluice_rm.c) say to each other of groups of channels. All of it happens in
 * the system calls of the clients, except the preemption.
 */
#ifndef SLUICE_TASK_H
#define SLUICE_TASK_H

#include "nv.h"

/* A group of channels (TSG), as it is now. */
struct sluice_task {
	/* Names the group while it is there; never looked into by the kernel's side. */
	const void *group;
	/* Instance number of the GPU. */
	NvU32 gpu;
	/* The client's handles. */
	NvU32 client;
	NvU32 object;
	NvU32 runlist;
	NvU32 tsg;
	/* 0 graphics and compute, 1 copy. */
	NvU32 engine;
	NvU32 channels;
	NvU32 interleave;
	NvU64 timeslice_us;
	NvU64 requested_us;
};

/* What a policy has decided; false and 0: as without a policy. */
struct sluice_decision {
	NvBool deny;
	NvBool has_timeslice;
	NvBool has_interleave;
	NvU32 interleave;
	NvU64 timeslice_us;
};

/* A group from which the GPU is to be taken, as the core has told of it. */
struct sluice_victim {
	const void *group;
	/* No other group has it, even one of the same name. */
	NvU64 serial;
	NvU32 client;
	NvU32 object;
};

/*
 * The kernel's side. Called with the GPU's lock held; may sleep. `decision` is empty
 * unless a policy has decided.
 */
void NV_API_CALL nv_sluice_task_init(const struct sluice_task *task,
				     struct sluice_decision *decision);
void NV_API_CALL nv_sluice_bind(const struct sluice_task *task, struct sluice_decision *decision);
void NV_API_CALL nv_sluice_timeslice(const struct sluice_task *task,
				     struct sluice_decision *decision);
void NV_API_CALL nv_sluice_task_destroy(const void *group);
/* False: gone, or another one by now. With the core's lock held the answer stays true. */
NvBool NV_API_CALL nv_sluice_is_there(const struct sluice_victim *victim);

/*
 * The core. Called without any of its locks; may sleep. The first gives false for a GPU
 * that has no number.
 */
NvBool NV_API_CALL rm_sluice_number(nv_state_t *nv, NvU32 *gpu);
NV_STATUS NV_API_CALL rm_sluice_preempt(nvidia_stack_t *sp, nv_state_t *nv,
					const struct sluice_victim *victim);

#endif /* SLUICE_TASK_H */
