/* SPDX-License-Identifier: GPL-2.0-only */
/* What the probe on the CUDA driver library tells of each call. */
#ifndef SLUICE_PROBE_CUDA_H
#define SLUICE_PROBE_CUDA_H

enum sluice_cuda_call {
	/* Memory was asked for: `bytes`, `result`, and `address` if it was had. */
	SLUICE_CUDA_ALLOC = 1,
	/* Memory at `address` is given back. */
	SLUICE_CUDA_FREE = 2,
	/* `bytes` kernels were launched on one processor since the last event of this kind. */
	SLUICE_CUDA_LAUNCH = 3,
};

struct sluice_cuda_event {
	__u64 time_ns;
	__u64 cgroup_id;
	__u64 bytes;
	__u64 address;
	__u32 tgid;
	__u32 tid;
	__u32 call;
	/* CUresult; 0 is success, 2 out of memory. */
	__s32 result;
	char comm[16];
};

#endif /* SLUICE_PROBE_CUDA_H */
