// SPDX-License-Identifier: GPL-2.0-only
// When the driver is loaded and unloaded.
@include@
@@
#include "uvm_global.h"
+#include "sluice_uvm.h"

@begin@
@@
int uvm_init(void)
{
<+...
+sluice_uvm_connect();
return 0;
...+>
}

@end@
@@
void uvm_exit(void)
{
<+...
uvm_global_exit();
+sluice_uvm_disconnect();
...+>
}
