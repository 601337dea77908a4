// SPDX-License-Identifier: GPL-2.0-only
// The core: a group of channels goes, with the last client that has it.
@include@
@@
#include "kernel/gpu/fifo/kernel_channel_group.h"
+#include "sluice_core.h"

@end@
typedef NV_STATUS, OBJGPU, KernelChannelGroup;
identifier pGpu, group;
@@
NV_STATUS kchangrpDestroy_IMPL(OBJGPU *pGpu, KernelChannelGroup *group)
{
<+...
+sluice_core_task_destroy(group);
NV_ASSERT(group->chanCount == 0);
...+>
}
