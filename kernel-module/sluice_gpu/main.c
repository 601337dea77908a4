// SPDX-License-Identifier: GPL-2.0-only
/* The module's beginning and end, and the memory managers that use it. */
#include <linux/module.h>
#include <linux/slab.h>

#include "internal.h"

LIST_HEAD(sluice_managers);

static_assert(sizeof(struct sluice_gpu_identity) == 32);
static_assert(sizeof(struct sluice_gpu_prefetch_ctx) == 96);
static_assert(sizeof(struct sluice_gpu_block_ctx) == 80);
static_assert(sizeof(struct sluice_gpu_candidate) == 72);
static_assert(sizeof(struct sluice_gpu_evict_ctx) == 64);
static_assert(sizeof(struct sluice_gpu_task_ctx) == 88);
static_assert(sizeof(struct sluice_gpu_plain) == 64);

/* Two may share a GPU if one has its memory and the other its tasks. */
static bool sluice_same_part(const struct sluice_gpu_manager_ops *a,
			     const struct sluice_gpu_manager_ops *b)
{
	return (a->reorder && b->reorder) || (a->preempt && b->preempt);
}

struct sluice_gpu_manager *sluice_gpu_register_manager(const struct sluice_gpu_manager_ops *ops,
						       u32 gpu, void *data)
{
	struct sluice_gpu_manager *manager, *other;

	if (!ops->name || (!ops->reorder && !ops->preempt) || gpu == SLUICE_GPU_ANY)
		return ERR_PTR(-EINVAL);
	manager = kzalloc(sizeof(*manager), GFP_KERNEL);
	if (!manager)
		return ERR_PTR(-ENOMEM);
	manager->ops = ops;
	manager->data = data;
	manager->gpu = gpu;
	spin_lock_init(&manager->rate.lock);
	manager->worker = alloc_ordered_workqueue("sluice_gpu_%u", 0, gpu);
	if (!manager->worker) {
		kfree(manager);
		return ERR_PTR(-ENOMEM);
	}
	mutex_lock(&sluice_lock);
	list_for_each_entry(other, &sluice_managers, node) {
		if (other->gpu == gpu && sluice_same_part(other->ops, ops)) {
			mutex_unlock(&sluice_lock);
			destroy_workqueue(manager->worker);
			kfree(manager);
			return ERR_PTR(-EEXIST);
		}
	}
	list_add_tail(&manager->node, &sluice_managers);
	mutex_unlock(&sluice_lock);
	return manager;
}
EXPORT_SYMBOL_GPL(sluice_gpu_register_manager);

void sluice_gpu_unregister_manager(struct sluice_gpu_manager *manager)
{
	mutex_lock(&sluice_lock);
	list_del(&manager->node);
	mutex_unlock(&sluice_lock);
	destroy_workqueue(manager->worker);
	kfree(manager);
}
EXPORT_SYMBOL_GPL(sluice_gpu_unregister_manager);

void sluice_gpu_flush(struct sluice_gpu_manager *manager)
{
	flush_workqueue(manager->worker);
}
EXPORT_SYMBOL_GPL(sluice_gpu_flush);

static int __init sluice_gpu_begin(void)
{
	int err;

	err = sluice_netlink_init();
	if (err)
		return err;
	/*
	 * A module whose BTF is missing or of another kernel loads all the same, and these
	 * calls succeed: the types then are known to nobody, and no policy could ever be
	 * attached. So it is asked whether they were found, and the module refused if not.
	 */
	err = sluice_register_kfuncs();
	err = err ?: sluice_mem_register();
	err = err ?: sluice_sched_register();
	if (err) {
		pr_err("sluice_gpu: the kernel did not take this module's BTF (%d): rebuild it for this very kernel, with pahole installed\n",
		       err);
		sluice_netlink_exit();
		return err;
	}
	return 0;
}

static void __exit sluice_gpu_end(void)
{
	sluice_netlink_exit();
	/* Tables are freed after a grace period, by code of the kernel: nothing is due here. */
}

module_init(sluice_gpu_begin);
module_exit(sluice_gpu_end);

MODULE_DESCRIPTION("Hooks that let BPF policies advise GPU memory managers and schedulers");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
