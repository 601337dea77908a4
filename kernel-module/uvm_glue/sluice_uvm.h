/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the semantic patches have nvidia-uvm call. Without sluice_gpu when the driver is
 * loaded each of these is a branch that is patched out; with it, a policy decides only
 * where one serves the hook.
 */
#ifndef SLUICE_UVM_H
#define SLUICE_UVM_H

#include <linux/jump_label.h>

#include "uvm_common.h"
#include "uvm_perf_prefetch.h"
#include "uvm_pmm_gpu.h"
#include "uvm_va_block.h"
#include "uvm_va_space.h"

/* True between connect and disconnect, if sluice_gpu was there. */
DECLARE_STATIC_KEY_FALSE(sluice_uvm_connected);

/* When the module begins and ends. No address space and no GPU is there then. */
void sluice_uvm_connect(void);
void sluice_uvm_disconnect(void);

/* The caller is who the address space belongs to. May sleep. */
void sluice_uvm_do_add_owner(const uvm_va_space_t *va_space);
void sluice_uvm_do_remove_owner(const uvm_va_space_t *va_space);

/* May sleep. */
void sluice_uvm_do_add_gpu(uvm_pmm_gpu_t *pmm);
void sluice_uvm_do_remove_gpu(uvm_pmm_gpu_t *pmm);

void sluice_uvm_do_report_faults(uvm_processor_id_t processor, u32 faults);
void sluice_uvm_do_prefetch(uvm_va_block_t *block, uvm_processor_id_t processor,
			    const uvm_page_mask_t *faulted, uvm_page_index_t page,
			    const uvm_perf_prefetch_bitmap_tree_t *tree, uvm_va_block_region_t max,
			    u32 threshold, uvm_va_block_region_t *region);
void sluice_uvm_do_activate(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk);
bool sluice_uvm_do_access(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk);
uvm_gpu_chunk_t *sluice_uvm_do_victim(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *native);

static __always_inline void sluice_uvm_add_owner(const uvm_va_space_t *va_space)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_add_owner(va_space);
}

static __always_inline void sluice_uvm_remove_owner(const uvm_va_space_t *va_space)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_remove_owner(va_space);
}

static __always_inline void sluice_uvm_add_gpu(uvm_pmm_gpu_t *pmm)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_add_gpu(pmm);
}

static __always_inline void sluice_uvm_remove_gpu(uvm_pmm_gpu_t *pmm)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_remove_gpu(pmm);
}

static __always_inline void sluice_uvm_report_faults(uvm_processor_id_t processor, u32 faults)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_report_faults(processor, faults);
}

/*
 * Replaces `region`, the native answer, by that of a policy. With the block's lock held.
 * `block` is NULL for memory that the driver does not manage: no policy is asked.
 */
static __always_inline void
sluice_uvm_prefetch(uvm_va_block_t *block, uvm_processor_id_t processor,
		    const uvm_page_mask_t *faulted, uvm_page_index_t page,
		    const uvm_perf_prefetch_bitmap_tree_t *tree, uvm_va_block_region_t max,
		    u32 threshold, uvm_va_block_region_t *region)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_prefetch(block, processor, faulted, page, tree, max, threshold,
				       region);
}

/* A root chunk was put at the tail of used. With the lists' lock held. */
static __always_inline void sluice_uvm_activate(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		sluice_uvm_do_activate(pmm, chunk);
}

/* True: the chunk is where a policy wants it. With the lock of the chunk's block held. */
static __always_inline bool sluice_uvm_access(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
	return static_branch_unlikely(&sluice_uvm_connected) && sluice_uvm_do_access(pmm, chunk);
}

/* The root chunk to evict; `native` if no policy wants another. With the lists' lock held. */
static __always_inline uvm_gpu_chunk_t *sluice_uvm_victim(uvm_pmm_gpu_t *pmm,
							  uvm_gpu_chunk_t *native)
{
	if (static_branch_unlikely(&sluice_uvm_connected))
		return sluice_uvm_do_victim(pmm, native);
	return native;
}

#endif /* SLUICE_UVM_H */
