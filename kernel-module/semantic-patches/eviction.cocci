// SPDX-License-Identifier: GPL-2.0-only
// The lists of a GPU's root chunks, and which of them is evicted.
@include@
@@
#include "uvm_pmm_gpu.h"
+#include "sluice_uvm.h"

// With the lists' lock held.
@activate@
typedef NV_STATUS, uvm_pmm_gpu_t, uvm_gpu_chunk_t, uvm_gpu_root_chunk_t;
identifier pmm, chunk;
identifier root_chunk;
expression list_used;
@@
void chunk_update_lists_locked(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
<+...
list_move_tail(&root_chunk->chunk.list, list_used);
+sluice_uvm_activate(pmm, &root_chunk->chunk);
...+>
}

@access@
identifier pmm, chunk;
@@
void uvm_pmm_gpu_mark_root_chunk_used(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
+if (sluice_uvm_access(pmm, chunk)) return;
...
}

// With the lists' lock held.
@victim@
identifier pmm, chunk;
@@
uvm_gpu_root_chunk_t *pick_root_chunk_to_evict(uvm_pmm_gpu_t *pmm)
{
<+...
+chunk = sluice_uvm_victim(pmm, chunk);
if (chunk)
	chunk_start_eviction(pmm, chunk);
...+>
}

@gpu_begin@
identifier pmm;
@@
NV_STATUS uvm_pmm_gpu_init(uvm_pmm_gpu_t *pmm)
{
<+...
+sluice_uvm_add_gpu(pmm);
return NV_OK;
...+>
}

@gpu_end@
identifier pmm;
@@
void uvm_pmm_gpu_deinit(uvm_pmm_gpu_t *pmm)
{
<+...
if (!pmm->initialized)
	return;
+sluice_uvm_remove_gpu(pmm);
...+>
}
