/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What every policy includes: the interface, and two macros that keep a policy to its
 * hooks. See docs/how-to/write-a-policy.md.
 *
 * On these paths use arrays, not hash maps: a hook runs under a spinlock of the driver,
 * and a GPU whose fault waits too long faults for good. sluice_slot gives an array index
 * for anything.
 */
#ifndef SLUICE_POLICY_BPF_H
#define SLUICE_POLICY_BPF_H

#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "../intf.h"

char LICENSE[] SEC("license") = "GPL";

/* A program for one hook: SLUICE_HOOK(block_access, struct sluice_gpu_block_ctx). */
#define SLUICE_HOOK(hook, type)          \
	SEC("struct_ops/" #hook)         \
	int BPF_PROG(hook, type *sluice)

#define SLUICE_PLAIN(title) \
	.plain = { .version = SLUICE_GPU_ABI, .gpu = SLUICE_GPU_ANY, .name = title }

/* The policy's object: SLUICE_MEM_POLICY("fifo", .block_access = (void *)block_access); */
#define SLUICE_MEM_POLICY(title, ...)    \
	SEC(".struct_ops.link")          \
	struct sluice_gpu_mem_ops mem_ops = { SLUICE_PLAIN(title), __VA_ARGS__ }

#define SLUICE_SCHED_POLICY(title, ...)  \
	SEC(".struct_ops.link")          \
	struct sluice_gpu_sched_ops sched_ops = { SLUICE_PLAIN(title), __VA_ARGS__ }

/* A tunable: set when the policy is loaded, a constant to the verifier. */
#define SLUICE_TUNABLE(type, name, value) const volatile type name = value

/* A map that is an array: SLUICE_ARRAY(frequency, __u8, SLUICE_CHUNKS); */
#define SLUICE_ARRAY(map, value_type, entries)        \
	struct {                                      \
		__uint(type, BPF_MAP_TYPE_ARRAY);     \
		__uint(max_entries, entries);         \
		__type(key, __u32);                   \
		__type(value, value_type);            \
	} map SEC(".maps")

/*
 * The most chunks that a policy keeps state for: 256 GiB of them. Chunks are numbered by
 * GPU, so where there are several, load such a policy once for each (--gpu).
 */
#define SLUICE_CHUNKS 131072

/* A place for a block in a table of that many (a power of two) entries. */
static __always_inline __u32 sluice_slot(__u64 va_space, __u64 block, __u32 entries)
{
	__u64 mixed = (va_space * 0x9e3779b97f4a7c15ULL) ^ (block * 0xc2b2ae3d27d4eb4fULL);

	return (mixed >> 32) & (entries - 1);
}

/* Names a block in one word, so that a table's entry says whose it is. */
static __always_inline __u64 sluice_key(__u64 va_space, __u64 block)
{
	return (va_space << 40) ^ block ^ 1ULL << 63;
}

#endif /* SLUICE_POLICY_BPF_H */
