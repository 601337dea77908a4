/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Generic netlink family "sluice_gpu": what is attached and what came of it. Needs
 * CAP_NET_ADMIN. Attributes are added at the end of an enum, never changed.
 */
#ifndef SLUICE_GPU_NETLINK_H
#define SLUICE_GPU_NETLINK_H

#define SLUICE_GPU_FAMILY "sluice_gpu"
#define SLUICE_GPU_FAMILY_VERSION 1
/* Multicast group: one SLUICE_GPU_CMD_EVENT for each change. */
#define SLUICE_GPU_GROUP "events"

enum sluice_gpu_cmd {
	SLUICE_GPU_CMD_UNSPEC,
	/* Request: nothing. Reply: A_ABI and an A_MANAGER for each manager. */
	SLUICE_GPU_CMD_INFO,
	/* Dump: a message for each attached policy. */
	SLUICE_GPU_CMD_POLICIES,
	/* Multicast: A_EVENT, and the policy's attributes without A_HOOK. */
	SLUICE_GPU_CMD_EVENT,
};

enum sluice_gpu_attr {
	SLUICE_GPU_A_UNSPEC,
	SLUICE_GPU_A_PAD,
	/* u32 */
	SLUICE_GPU_A_ABI,
	/* nested: A_GPU, A_NAME */
	SLUICE_GPU_A_MANAGER,
	/* u64: no two attachments have had the same since the module was loaded */
	SLUICE_GPU_A_ID,
	/* string */
	SLUICE_GPU_A_NAME,
	/* u32: 0 memory, 1 scheduling */
	SLUICE_GPU_A_TYPE,
	/* u32: SLUICE_GPU_ANY for all */
	SLUICE_GPU_A_GPU,
	/* u64: 0 for all */
	SLUICE_GPU_A_CGROUP,
	/* u32, nanoseconds */
	SLUICE_GPU_A_BUDGET,
	/* u32: how often another load took its place */
	SLUICE_GPU_A_REPLACED,
	/* u32: 0 in force, 1 too slow, 2 too many wrong answers, 3 too many faults */
	SLUICE_GPU_A_BYPASS,
	/* If slow or wrong; u32: the hook at which it was, u64: how long that call took (ns) */
	SLUICE_GPU_A_BYPASS_HOOK,
	SLUICE_GPU_A_BYPASS_NS,
	/* nested, one for each hook that it has: A_HOOK_* */
	SLUICE_GPU_A_HOOK,
	/* u32: enum sluice_gpu_hook */
	SLUICE_GPU_A_HOOK_INDEX,
	/* u64 each */
	SLUICE_GPU_A_HOOK_CALLS,
	SLUICE_GPU_A_HOOK_TIME_NS,
	SLUICE_GPU_A_HOOK_MAX_NS,
	/* array of u64, by enum sluice_gpu_outcome */
	SLUICE_GPU_A_HOOK_OUTCOMES,
	/* array of u64: preemptions done, without a task, refused */
	SLUICE_GPU_A_PREEMPTIONS,
	/* u32: 0 attached, 1 replaced, 2 detached, 3 bypassed */
	SLUICE_GPU_A_EVENT,
	/* u32: what faults may rise to on trial, percent */
	SLUICE_GPU_A_FAULT_PERCENT,
	/* u32 each: faults in 10 ms at which it was bypassed, and before it was attached */
	SLUICE_GPU_A_BYPASS_FAULTS,
	SLUICE_GPU_A_BYPASS_BEFORE,
	__SLUICE_GPU_A_END,
};

#endif /* SLUICE_GPU_NETLINK_H */
