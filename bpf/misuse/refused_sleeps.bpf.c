// SPDX-License-Identifier: GPL-2.0-only
/* Refused: a program that may sleep, for a hook that is called under a spinlock. */
#include "../lib/policy.bpf.h"

SEC("struct_ops.s/block_access")
int BPF_PROG(block_access, struct sluice_gpu_block_ctx *sluice)
{
	return SLUICE_GPU_DEFAULT;
}

SLUICE_MEM_POLICY("refused", .block_access = (void *)block_access);
