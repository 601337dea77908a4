// SPDX-License-Identifier: GPL-2.0-only
/*
 * For the scenario of the probe: has functions of the CUDA driver library's names and
 * calls them, where there is neither library nor GPU. It prints what it did.
 */
#include <stddef.h>
#include <stdio.h>

#define LIMIT (1ULL << 32)
#define OUT_OF_MEMORY 2

typedef unsigned long long address;

__attribute__((noinline)) int cuMemAlloc_v2(address *at, size_t bytes)
{
	static address next = 0x700000000000ULL;

	if (bytes > LIMIT)
		return OUT_OF_MEMORY;
	*at = next;
	next += bytes;
	return 0;
}

__attribute__((noinline)) int cuMemFree_v2(address at)
{
	/* Keeps the call from being folded away. */
	__asm__ volatile("" : : "r"(at) : "memory");
	return 0;
}

__attribute__((noinline)) int cuLaunchKernel(void *function)
{
	__asm__ volatile("" : : "r"(function) : "memory");
	return 0;
}

int main(void)
{
	address at[3] = {};
	int i, refused;

	for (i = 0; i < 3; i++)
		cuMemAlloc_v2(&at[i], (size_t)(i + 1) << 20);
	refused = cuMemAlloc_v2(&at[0], 1ULL << 40);
	for (i = 0; i < 2000; i++)
		cuLaunchKernel(NULL);
	cuMemFree_v2(at[2]);
	printf("%llx %llx %llx %d\n", at[0], at[1], at[2], refused);
	return 0;
}
