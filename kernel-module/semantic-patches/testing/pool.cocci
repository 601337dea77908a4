// SPDX-License-Identifier: GPL-2.0-only
// For scenarios only, never in the driver that is meant to be used: ways into two functions
// that can otherwise be reached with a GPU only.
@include@
@@
#include "sluice_uvm.h"
+#include "sluice_uvm_testing.h"

@update@
typedef uvm_pmm_gpu_t, uvm_gpu_chunk_t, uvm_gpu_root_chunk_t;
identifier pmm, chunk;
@@
void chunk_update_lists_locked(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
{
...
}
+
+void sluice_uvm_testing_update(uvm_pmm_gpu_t *pmm, uvm_gpu_chunk_t *chunk)
+{
+	chunk_update_lists_locked(pmm, chunk);
+}

@pick@
typedef uvm_pmm_gpu_t, uvm_gpu_root_chunk_t;
identifier pmm;
@@
uvm_gpu_root_chunk_t *pick_root_chunk_to_evict(uvm_pmm_gpu_t *pmm)
{
...
}
+
+uvm_gpu_root_chunk_t *sluice_uvm_testing_pick(uvm_pmm_gpu_t *pmm)
+{
+	return pick_root_chunk_to_evict(pmm);
+}
