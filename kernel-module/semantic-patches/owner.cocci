// SPDX-License-Identifier: GPL-2.0-only
// Whose address space it is.
@include@
@@
#include "uvm_global.h"
+#include "sluice_uvm.h"

@begin@
typedef NV_STATUS;
identifier va_space, va_space_ptr;
@@
NV_STATUS uvm_va_space_create(...)
{
<+...
+sluice_uvm_add_owner(va_space);
 *va_space_ptr = va_space;
 return NV_OK;
...+>
}

@end@
typedef uvm_va_space_t;
identifier va_space;
@@
void uvm_va_space_destroy(uvm_va_space_t *va_space)
{
<+...
+sluice_uvm_remove_owner(va_space);
uvm_perf_heuristics_stop(va_space);
...+>
}
