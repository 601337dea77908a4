// SPDX-License-Identifier: GPL-2.0-only
// What may be brought in beside a faulted page, and how many faults there were.
// sluice_uvm_prefetch needs to know whose block it is: two or three more parameters carry
// that to where the decision is made. Address translation of the system has no block.
@include@
@@
#include "uvm_perf_prefetch.h"
+#include "sluice_uvm.h"

@decision@
typedef NvU32, uvm_va_block_t, uvm_processor_id_t, uvm_page_mask_t;
typedef uvm_va_block_region_t, uvm_page_index_t, uvm_perf_prefetch_bitmap_tree_t;
iterator name uvm_perf_prefetch_bitmap_tree_traverse_counters;
identifier page, tree, max, region;
@@
uvm_va_block_region_t compute_prefetch_region(
+	uvm_va_block_t *va_block, uvm_processor_id_t new_residency, const uvm_page_mask_t *faulted_pages,
	uvm_page_index_t page, uvm_perf_prefetch_bitmap_tree_t *tree, uvm_va_block_region_t max)
{
...
+sluice_uvm_prefetch(va_block, new_residency, faulted_pages, page, tree, max, g_uvm_perf_prefetch_threshold, &region);
return region;
}

@mask@
identifier faulted_region, max, tree, faulted, out;
iterator name for_each_va_block_page_in_region_mask;
expression list arguments;
@@
void compute_prefetch_mask(
+	uvm_va_block_t *va_block, uvm_processor_id_t new_residency,
	uvm_va_block_region_t faulted_region, uvm_va_block_region_t max, uvm_perf_prefetch_bitmap_tree_t *tree,
	const uvm_page_mask_t *faulted, uvm_page_mask_t *out)
{
<+...
compute_prefetch_region(
+	va_block, new_residency, faulted,
	arguments)
...+>
}

@served_mask@
expression list arguments;
@@
NvU32 uvm_perf_prefetch_prenotify_fault_migrations(...)
{
<+...
compute_prefetch_mask(
+	va_block, new_residency,
	arguments)
...+>
}

// Before 535.104 without a function between.
@served_region depends on !mask@
expression list arguments;
@@
NvU32 uvm_perf_prefetch_prenotify_fault_migrations(...)
{
<+...
compute_prefetch_region(
+	va_block, new_residency, faulted_pages,
	arguments)
...+>
}

@ats@
expression list arguments;
@@
void uvm_perf_prefetch_compute_ats(...)
{
<+...
compute_prefetch_mask(
+	NULL, UVM_ID_CPU,
	arguments)
...+>
}

@count@
expression pages;
@@
NvU32 uvm_perf_prefetch_prenotify_fault_migrations(...)
{
<+...
va_block->prefetch_info.fault_migrations_to_last_proc += pages;
+sluice_uvm_report_faults(new_residency, pages);
...+>
}
