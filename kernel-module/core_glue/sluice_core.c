// SPDX-License-Identifier: GPL-2.0-only
/*
 * Part of the driver's core: tells the kernel's side what clients do with their groups of
 * channels, and sends what a policy has decided to the GPU's firmware. What the core keeps
 * of a group is only a copy; a timeslice is in force when the firmware has been told.
 *
 * Told of are groups of ordinary clients that the firmware knows by the client's handles.
 * Those of the kernel (nvidia-uvm, the scrubber, the watchdog) belong to no tenant, those
 * that the core makes for a single channel have no handle there, and what decodes video
 * is not scheduled by policies.
 *
 * No check of what a client asks for is changed or left out, and nothing is added that a
 * client can call. What is sent here is sent as the kernel, for a policy of root's.
 */
#include <nv.h>
#include <nv-priv.h>
#include <os/os.h>
#include <osapi.h>
#include <core/locks.h>
#include <core/thread_state.h>
#include <gpu/gpu.h>
#include <gpu_mgr/gpu_mgr.h>
#include <rmapi/rs_utils.h>
#include <resserv/rs_server.h>
#include <resserv/rs_client.h>

#include "ctrl/ctrla06c.h"
#include "sluice_core.h"
#include "sluice_task.h"

/* How long a preemption may take before it counts as failed. */
#define SLUICE_CORE_PREEMPT_US 100000

/* Sends a control of the group to the firmware. */
static NV_STATUS sluice_core_send(KernelChannelGroupApi *api, NvU32 command, void *params,
				  NvU32 size)
{
	OBJGPU *gpu = GPU_RES_GET_GPU(api);
	RM_API *firmware = GPU_GET_PHYSICAL_RMAPI(gpu);
	CALL_CONTEXT own, *clients = NULL;
	NV_STATUS status;

	/* The client's call may carry its parameters in another form, and has its rights. */
	portMemSet(&own, 0, sizeof(own));
	own.secInfo = firmware->defaultSecInfo;
	status = resservSwapTlsCallContext(&clients, &own);
	if (status != NV_OK)
		return status;
	status = firmware->Control(firmware, RES_GET_CLIENT_HANDLE(api), RES_GET_HANDLE(api),
				   command, params, size);
	(void)resservRestoreTlsCallContext(clients);
	return status;
}

static NvBool sluice_core_set_timeslice(KernelChannelGroupApi *api, NvU64 us)
{
	NVA06C_CTRL_TIMESLICE_PARAMS params;

	portMemSet(&params, 0, sizeof(params));
	params.timesliceUs = us;
	return sluice_core_send(api, NVA06C_CTRL_CMD_SET_TIMESLICE, &params, sizeof(params)) ==
	       NV_OK;
}

static void sluice_core_set_interleave(KernelChannelGroupApi *api, NvU32 level)
{
	OBJGPU *gpu = GPU_RES_GET_GPU(api);
	NVA06C_CTRL_INTERLEAVE_LEVEL_PARAMS params;

	portMemSet(&params, 0, sizeof(params));
	params.tsgInterleaveLevel = level;
	if (sluice_core_send(api, NVA06C_CTRL_CMD_SET_INTERLEAVE_LEVEL, &params,
			     sizeof(params)) == NV_OK)
		(void)kchangrpSetInterleaveLevel(gpu, api->pKernelChannelGroup, level);
}

static void sluice_core_apply(KernelChannelGroupApi *api, const struct sluice_decision *decision)
{
	if (decision->has_timeslice && sluice_core_set_timeslice(api, decision->timeslice_us))
		api->pKernelChannelGroup->timesliceUs = decision->timeslice_us;
	if (decision->has_interleave)
		sluice_core_set_interleave(api, decision->interleave);
}

/* False: a group that no policy is told of. */
static NvBool sluice_core_describe(KernelChannelGroupApi *api, struct sluice_task *task)
{
	KernelChannelGroup *group = api->pKernelChannelGroup;
	OBJGPU *gpu = GPU_RES_GET_GPU(api);

	if (!group || !IS_GSP_CLIENT(gpu) || !staticCast(api, RmResource)->bRpcFree)
		return NV_FALSE;
	portMemSet(task, 0, sizeof(*task));
	/* GPUs before Ampere don't have it told; there, it is graphics unless said later. */
	if (RM_ENGINE_TYPE_IS_COPY(group->engineType))
		task->engine = 1;
	else if (group->engineType != RM_ENGINE_TYPE_NULL &&
		 !RM_ENGINE_TYPE_IS_GR(group->engineType))
		return NV_FALSE;
	task->group = group;
	task->gpu = gpu->gpuInstance;
	task->client = RES_GET_CLIENT_HANDLE(api);
	task->object = RES_GET_HANDLE(api);
	task->runlist = group->runlistId;
	task->tsg = group->grpID;
	task->channels = group->chanCount;
	task->interleave = group->pInterleaveLevel[gpumgrGetSubDeviceInstanceFromGpu(gpu)];
	task->timeslice_us = group->timesliceUs;
	return NV_TRUE;
}

void sluice_core_task_init(KernelChannelGroupApi *api, const CALL_CONTEXT *context)
{
	struct sluice_decision decision;
	struct sluice_task task;

	if (context->secInfo.privLevel >= RS_PRIV_LEVEL_KERNEL || !sluice_core_describe(api, &task))
		return;
	nv_sluice_task_init(&task, &decision);
	sluice_core_apply(api, &decision);
}

NvBool sluice_core_bind(KernelChannelGroupApi *api, NvBool enable)
{
	struct sluice_decision decision;
	struct sluice_task task;

	if (!enable || !api || !sluice_core_describe(api, &task))
		return NV_TRUE;
	nv_sluice_bind(&task, &decision);
	if (decision.deny)
		return NV_FALSE;
	sluice_core_apply(api, &decision);
	return NV_TRUE;
}

NvU64 sluice_core_timeslice(KernelChannelGroupApi *api, NvU64 us)
{
	struct sluice_decision decision;
	struct sluice_task task;

	if (!sluice_core_describe(api, &task))
		return us;
	task.requested_us = us;
	nv_sluice_timeslice(&task, &decision);
	if (decision.has_interleave)
		sluice_core_set_interleave(api, decision.interleave);
	/* What the firmware doesn't accept of a policy leaves the client's wish in force. */
	if (decision.has_timeslice && sluice_core_set_timeslice(api, decision.timeslice_us))
		return decision.timeslice_us;
	return us;
}

void sluice_core_task_destroy(KernelChannelGroup *group)
{
	nv_sluice_task_destroy(group);
}

NvBool NV_API_CALL rm_sluice_number(nv_state_t *nv, NvU32 *gpu)
{
	OBJGPU *pGpu = NV_GET_NV_PRIV_PGPU(nv);

	if (!pGpu || !IS_GSP_CLIENT(pGpu))
		return NV_FALSE;
	*gpu = pGpu->gpuInstance;
	return NV_TRUE;
}

/* With the core's lock held for writing: whether the handles still name the group. */
static NvBool sluice_core_is(const struct sluice_victim *victim)
{
	KernelChannelGroupApi *api;
	RsResourceRef *ref;
	RsClient *client;

	if (!nv_sluice_is_there(victim) ||
	    serverGetClientUnderLock(&g_resServ, victim->client, &client) != NV_OK ||
	    clientGetResourceRefByType(client, victim->object, classId(KernelChannelGroupApi),
				       &ref) != NV_OK)
		return NV_FALSE;
	api = dynamicCast(ref->pResource, KernelChannelGroupApi);
	return api && api->pKernelChannelGroup == victim->group;
}

/*
 * Nothing is disabled for it: the group stays runnable whatever comes of this, and what
 * somebody else has disabled stays so.
 */
NV_STATUS NV_API_CALL rm_sluice_preempt(nvidia_stack_t *sp, nv_state_t *nv,
					const struct sluice_victim *victim)
{
	NV_STATUS status = NV_ERR_INVALID_STATE;
	NVA06C_CTRL_PREEMPT_PARAMS params;
	THREAD_STATE_NODE thread;
	RM_API *core;
	void *fp;

	NV_ENTER_RM_RUNTIME(sp, fp);
	portMemSet(&params, 0, sizeof(params));
	params.bWait = NV_TRUE;
	params.bManualTimeout = NV_TRUE;
	params.timeoutUs = SLUICE_CORE_PREEMPT_US;
	core = RmUnixRmApiPrologue(nv, &thread, RM_LOCK_MODULES_FIFO);
	if (core) {
		status = sluice_core_is(victim) ?
				 core->Control(core, victim->client, victim->object,
					       NVA06C_CTRL_CMD_PREEMPT, &params, sizeof(params)) :
				 NV_ERR_OBJECT_NOT_FOUND;
		RmUnixRmApiEpilogue(nv, &thread);
	}
	NV_EXIT_RM_RUNTIME(sp, fp);
	return status;
}
