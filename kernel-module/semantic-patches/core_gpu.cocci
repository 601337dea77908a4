// SPDX-License-Identifier: GPL-2.0-only
// The core, on the kernel's side: a GPU comes into use, and goes.
@include@
@@
#include "nv-linux.h"
+#include "sluice_rm.h"

@begin@
typedef nv_state_t, nvidia_stack_t;
identifier nv, sp;
@@
int nv_start_device(nv_state_t *nv, nvidia_stack_t *sp)
{
<+...
rm_unref_dynamic_power(sp, nv, NV_DYNAMIC_PM_FINE);
+nv_sluice_add_gpu(nv);
return 0;
...+>
}

// At both places: with software state that stays, and without.
@end@
identifier sp, nv;
@@
+nv_sluice_remove_gpu(nv);
rm_disable_adapter(sp, nv);
