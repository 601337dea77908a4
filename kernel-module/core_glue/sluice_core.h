/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the semantic patches have the driver's core call. Each is one call of the kernel's
 * side, which answers at once while no policy can be there.
 */
#ifndef SLUICE_CORE_H
#define SLUICE_CORE_H

#include "kernel/gpu/fifo/kernel_channel_group.h"
#include "kernel/gpu/fifo/kernel_channel_group_api.h"

/* A group was made and the firmware knows it. With the GPU's lock held, like all of these. */
void sluice_core_task_init(KernelChannelGroupApi *api, const CALL_CONTEXT *context);

/* False: a policy doesn't let it be scheduled now. */
NvBool sluice_core_bind(KernelChannelGroupApi *api, NvBool enable);

/* The firmware has set this timeslice, as the client wanted. Gives the one in force. */
NvU64 sluice_core_timeslice(KernelChannelGroupApi *api, NvU64 us);

void sluice_core_task_destroy(KernelChannelGroup *group);

#endif /* SLUICE_CORE_H */
