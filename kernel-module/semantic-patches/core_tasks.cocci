// SPDX-License-Identifier: GPL-2.0-only
// The core: groups of channels (TSG) that a client makes, schedules and sets timeslices of.
@include@
@@
#include "kernel/gpu/fifo/kernel_channel_group.h"
+#include "sluice_core.h"

// With the GPU's lock held. The firmware knows the group by then.
@begin@
typedef NV_STATUS, KernelChannelGroupApi, CALL_CONTEXT, RS_RES_ALLOC_PARAMS_INTERNAL;
identifier api, context, params;
@@
NV_STATUS kchangrpapiConstruct_IMPL(KernelChannelGroupApi *api, CALL_CONTEXT *context,
	RS_RES_ALLOC_PARAMS_INTERNAL *params)
{
<+...
if (listAppendValue(...) == NULL)
{
	...
}
+sluice_core_task_init(api, context);
...+>
}

@schedule@
typedef NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS;
identifier api, params, pClass;
@@
NV_STATUS kchangrpapiCtrlCmdGpFifoSchedule_IMPL(KernelChannelGroupApi *api,
	NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS *params)
{
<+...
NV_ASSERT_OR_RETURN((pClass != NULL), NV_ERR_NOT_SUPPORTED);
+if (!sluice_core_bind(api, params->bEnable)) return NV_ERR_BUSY_RETRY;
...+>
}

// The firmware has accepted what the client asked for; a policy may ask for something else.
@timeslice@
typedef NVA06C_CTRL_TIMESLICE_PARAMS;
identifier api, params;
identifier group;
expression asked;
@@
NV_STATUS kchangrpapiCtrlCmdSetTimeslice_IMPL(KernelChannelGroupApi *api,
	NVA06C_CTRL_TIMESLICE_PARAMS *params)
{
<+...
group->timesliceUs =
-	asked
+	sluice_core_timeslice(api, asked)
	;
...+>
}
