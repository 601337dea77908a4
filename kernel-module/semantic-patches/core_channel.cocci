// SPDX-License-Identifier: GPL-2.0-only
// The core: a single channel of a group can be scheduled, too.
@include@
@@
#include "kernel/gpu/fifo/kernel_channel.h"
+#include "sluice_core.h"

@schedule@
typedef NV_STATUS, KernelChannel, NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS;
identifier channel, params, pGpu;
@@
NV_STATUS kchannelCtrlCmdGpFifoSchedule_IMPL(KernelChannel *channel,
	NVA06F_CTRL_GPFIFO_SCHEDULE_PARAMS *params)
{
<+...
NV_ASSERT_OR_RETURN(kchannelIsSchedulable_HAL(pGpu, channel), NV_ERR_INVALID_STATE);
+if (!sluice_core_bind(channel->pKernelChannelGroupApi, params->bEnable)) return NV_ERR_BUSY_RETRY;
...+>
}
