/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What programs record while a hook runs. Each context that a program is given is the
 * first part of a call, so that the kfuncs find the request beside it; programs know
 * neither its place nor its type, and contexts are made by the entry points only.
 */
#ifndef SLUICE_GPU_REQUESTS_H
#define SLUICE_GPU_REQUESTS_H

#include "internal.h"

struct sluice_request {
	bool asked;
	bool conflict;
	u64 a;
	u64 b;
};

static inline void sluice_record(struct sluice_request *request, u64 a, u64 b)
{
	if (!request->asked) {
		request->asked = true;
		request->a = a;
		request->b = b;
	} else if (request->a != a || request->b != b) {
		request->conflict = true;
	}
}

struct sluice_prefetch_call {
	struct sluice_gpu_prefetch_ctx ctx;
	struct sluice_call call;
	struct sluice_request region;
};

struct sluice_block_call {
	struct sluice_gpu_block_ctx ctx;
	struct sluice_call call;
	struct sluice_request reorder;
};

struct sluice_evict_call {
	struct sluice_gpu_evict_ctx ctx;
	struct sluice_call call;
	const struct sluice_gpu_candidate *candidate;
	struct sluice_request victim;
};

struct sluice_task_call {
	struct sluice_gpu_task_ctx ctx;
	struct sluice_call call;
	struct sluice_request timeslice;
	struct sluice_request interleave;
	struct sluice_request admit;
	struct sluice_request preempt;
};

/* Whether a policy may touch what belongs to owners of this cgroup. */
bool sluice_in_scope(const struct sluice_call *call, const struct cgroup *cgroup);

#endif /* SLUICE_GPU_REQUESTS_H */
