// SPDX-License-Identifier: GPL-2.0-only
/* Tells user space what is attached. Read only: policies come and go by their links. */
#include <net/genetlink.h>

#include "internal.h"
#include "sluice_gpu_netlink.h"

static struct genl_family sluice_family;

/* With sluice_lock held. */
static int sluice_put_policy(struct sk_buff *msg, const struct sluice_attachment *attachment)
{
	/* Orders what it was charged with behind it. */
	int bypass = smp_load_acquire(&attachment->bypass);
	const struct sluice_charge *charge = &attachment->charge;

	if (nla_put_u64_64bit(msg, SLUICE_GPU_A_ID, attachment->id, SLUICE_GPU_A_PAD) ||
	    nla_put_string(msg, SLUICE_GPU_A_NAME, attachment->scope.name) ||
	    nla_put_u32(msg, SLUICE_GPU_A_TYPE, attachment->type) ||
	    nla_put_u32(msg, SLUICE_GPU_A_GPU, attachment->scope.gpu) ||
	    nla_put_u64_64bit(msg, SLUICE_GPU_A_CGROUP, attachment->scope.cgroup_id,
			      SLUICE_GPU_A_PAD) ||
	    nla_put_u32(msg, SLUICE_GPU_A_BUDGET, attachment->scope.budget_ns) ||
	    nla_put_u32(msg, SLUICE_GPU_A_FAULT_PERCENT, attachment->scope.fault_percent) ||
	    nla_put_u32(msg, SLUICE_GPU_A_REPLACED, attachment->replaced) ||
	    nla_put_u32(msg, SLUICE_GPU_A_BYPASS, bypass))
		return -EMSGSIZE;
	if (!bypass)
		return 0;
	if (bypass == SLUICE_BYPASS_FAULTS) {
		if (nla_put_u32(msg, SLUICE_GPU_A_BYPASS_FAULTS, charge->faults) ||
		    nla_put_u32(msg, SLUICE_GPU_A_BYPASS_BEFORE, charge->before))
			return -EMSGSIZE;
		return 0;
	}
	if (nla_put_u32(msg, SLUICE_GPU_A_BYPASS_HOOK, charge->hook) ||
	    nla_put_u64_64bit(msg, SLUICE_GPU_A_BYPASS_NS, charge->ns,
			      SLUICE_GPU_A_PAD))
		return -EMSGSIZE;
	return 0;
}

static int sluice_put_hook(struct sk_buff *msg, int hook, const struct sluice_hook_stats *stats)
{
	struct nlattr *nest = nla_nest_start(msg, SLUICE_GPU_A_HOOK);

	if (!nest || nla_put_u32(msg, SLUICE_GPU_A_HOOK_INDEX, hook) ||
	    nla_put_u64_64bit(msg, SLUICE_GPU_A_HOOK_CALLS, stats->calls, SLUICE_GPU_A_PAD) ||
	    nla_put_u64_64bit(msg, SLUICE_GPU_A_HOOK_TIME_NS, stats->time_ns, SLUICE_GPU_A_PAD) ||
	    nla_put_u64_64bit(msg, SLUICE_GPU_A_HOOK_MAX_NS, stats->max_ns, SLUICE_GPU_A_PAD) ||
	    nla_put(msg, SLUICE_GPU_A_HOOK_OUTCOMES, sizeof(stats->outcome), stats->outcome))
		return -EMSGSIZE;
	nla_nest_end(msg, nest);
	return 0;
}

static int sluice_put_counters(struct sk_buff *msg, const struct sluice_attachment *attachment)
{
	u64 preemptions[] = {
		atomic64_read(&attachment->preempt_done),
		atomic64_read(&attachment->preempt_stale),
		atomic64_read(&attachment->preempt_refused),
	};
	struct sluice_stats *sum;
	int hook, err = 0;

	sum = kmalloc(sizeof(*sum), GFP_KERNEL);
	if (!sum)
		return -ENOMEM;
	sluice_sum_stats(attachment, sum);
	for (hook = 0; !err && hook < SLUICE_GPU_HOOKS; hook++) {
		if (attachment->hooks & BIT(hook))
			err = sluice_put_hook(msg, hook, &sum->hook[hook]);
	}
	kfree(sum);
	return err ?: nla_put(msg, SLUICE_GPU_A_PREEMPTIONS, sizeof(preemptions), preemptions);
}

static int sluice_dump_policies(struct sk_buff *msg, struct netlink_callback *cb)
{
	struct sluice_attachment *attachment;
	int err = 0;

	mutex_lock(&sluice_lock);
	list_for_each_entry(attachment, &sluice_attachments, node) {
		void *header;

		/* Ids only grow, so the last one sent says where to go on. */
		if (attachment->id <= cb->args[0])
			continue;
		header = genlmsg_put(msg, NETLINK_CB(cb->skb).portid, cb->nlh->nlmsg_seq,
				     &sluice_family, NLM_F_MULTI, SLUICE_GPU_CMD_POLICIES);
		err = header ? sluice_put_policy(msg, attachment) : -EMSGSIZE;
		err = err ?: sluice_put_counters(msg, attachment);
		if (err) {
			if (header)
				genlmsg_cancel(msg, header);
			break;
		}
		genlmsg_end(msg, header);
		cb->args[0] = attachment->id;
	}
	mutex_unlock(&sluice_lock);
	/* A full message is no error: what is missing is asked for again. */
	return msg->len ?: err;
}

static int sluice_put_managers(struct sk_buff *msg)
{
	struct sluice_gpu_manager *manager;

	list_for_each_entry(manager, &sluice_managers, node) {
		struct nlattr *nest = nla_nest_start(msg, SLUICE_GPU_A_MANAGER);

		if (!nest || nla_put_u32(msg, SLUICE_GPU_A_GPU, manager->gpu) ||
		    nla_put_string(msg, SLUICE_GPU_A_NAME, manager->ops->name))
			return -EMSGSIZE;
		nla_nest_end(msg, nest);
	}
	return 0;
}

static int sluice_get_info(struct sk_buff *request, struct genl_info *info)
{
	struct sk_buff *msg = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	void *header;
	int err;

	if (!msg)
		return -ENOMEM;
	header = genlmsg_put_reply(msg, info, &sluice_family, 0, SLUICE_GPU_CMD_INFO);
	if (!header || nla_put_u32(msg, SLUICE_GPU_A_ABI, SLUICE_GPU_ABI)) {
		nlmsg_free(msg);
		return -EMSGSIZE;
	}
	mutex_lock(&sluice_lock);
	err = sluice_put_managers(msg);
	mutex_unlock(&sluice_lock);
	if (err) {
		nlmsg_free(msg);
		return err;
	}
	genlmsg_end(msg, header);
	return genlmsg_reply(msg, info);
}

static const struct genl_small_ops sluice_genl_ops[] = {
	{
		.cmd = SLUICE_GPU_CMD_INFO,
		.flags = GENL_ADMIN_PERM,
		.doit = sluice_get_info,
	},
	{
		.cmd = SLUICE_GPU_CMD_POLICIES,
		.flags = GENL_ADMIN_PERM,
		.dumpit = sluice_dump_policies,
	},
};

static const struct genl_multicast_group sluice_groups[] = {
	/* What is attached is told to administrators only, here as when asked. */
	{ .name = SLUICE_GPU_GROUP, .flags = GENL_MCAST_CAP_NET_ADMIN },
};

static struct genl_family sluice_family __ro_after_init = {
	.name = SLUICE_GPU_FAMILY,
	.version = SLUICE_GPU_FAMILY_VERSION,
	.maxattr = SLUICE_GPU_A_UNSPEC,
	.module = THIS_MODULE,
	.small_ops = sluice_genl_ops,
	.n_small_ops = ARRAY_SIZE(sluice_genl_ops),
	.resv_start_op = SLUICE_GPU_CMD_EVENT + 1,
	.mcgrps = sluice_groups,
	.n_mcgrps = ARRAY_SIZE(sluice_groups),
};

/* Tells who listens; that nobody does, or memory for it lacks, changes nothing. */
void sluice_announce(enum sluice_event event, const struct sluice_attachment *attachment)
{
	struct sk_buff *msg = genlmsg_new(NLMSG_GOODSIZE, GFP_KERNEL);
	void *header;

	if (!msg)
		return;
	header = genlmsg_put(msg, 0, 0, &sluice_family, 0, SLUICE_GPU_CMD_EVENT);
	if (!header || nla_put_u32(msg, SLUICE_GPU_A_EVENT, event) ||
	    sluice_put_policy(msg, attachment)) {
		nlmsg_free(msg);
		return;
	}
	genlmsg_end(msg, header);
	genlmsg_multicast(&sluice_family, msg, 0, 0, GFP_KERNEL);
}

int sluice_netlink_init(void)
{
	return genl_register_family(&sluice_family);
}

void sluice_netlink_exit(void)
{
	genl_unregister_family(&sluice_family);
}
