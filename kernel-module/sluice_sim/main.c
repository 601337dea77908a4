// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/sluice_sim: a GPU for each open file, fed by a trace, see sluice_sim.h. It asks
 * policies through sluice_gpu just as a driver would, so that they can be tested and
 * compared where there is no GPU.
 */
#include <linux/cgroup.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/seq_buf.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "sim.h"

#define SIM_REPORT_BYTES 65536
/* Records copied at a time. */
#define SIM_COPY 128

static_assert(sizeof(struct sluice_sim_record) == 32);

static const struct sluice_gpu_manager_ops sim_manager_ops = {
	.owner = THIS_MODULE,
	.name = "sim",
	.reorder = sim_reorder,
	.preempt = sim_preempt,
};

static int sim_open(struct inode *inode, struct file *file)
{
	struct sim *sim = kvzalloc(sizeof(*sim), GFP_KERNEL);
	int i;

	if (!sim)
		return -ENOMEM;
	mutex_init(&sim->lock);
	spin_lock_init(&sim->list_lock);
	spin_lock_init(&sim->task_lock);
	INIT_LIST_HEAD(&sim->free);
	INIT_LIST_HEAD(&sim->used);
	INIT_LIST_HEAD(&sim->unused);
	INIT_LIST_HEAD(&sim->batch);
	for (i = 0; i < SLUICE_SIM_TENANTS; i++)
		xa_init(&sim->tenant[i].blocks);
	file->private_data = sim;
	return stream_open(inode, file);
}

static int sim_release(struct inode *inode, struct file *file)
{
	struct sim *sim = file->private_data;
	int i;

	if (sim->manager)
		sluice_gpu_unregister_manager(sim->manager);
	sim_tasks_exit(sim);
	sim_memory_exit(sim);
	for (i = 0; i < SLUICE_SIM_TENANTS; i++) {
		if (sim->tenant[i].known)
			cgroup_put(sim->tenant[i].owner.cgroup);
	}
	kvfree(sim);
	return 0;
}

static int sim_configure(struct sim *sim, const struct sluice_sim_record *record)
{
	struct sluice_gpu_manager *manager;
	int err;

	if (sim->manager)
		return -EEXIST;
	if (!record->a || record->a > SLUICE_SIM_CHUNKS_MAX || record->c >= SLUICE_GPU_ANY)
		return -EINVAL;
	manager = sluice_gpu_register_manager(&sim_manager_ops, record->c, sim);
	if (IS_ERR(manager))
		return PTR_ERR(manager);
	err = sim_memory_init(sim, record->a);
	if (err) {
		sluice_gpu_unregister_manager(manager);
		return err;
	}
	sim->gpu = record->c;
	sim->link_bytes_per_s = record->b ?: SIM_LINK_BYTES_PER_S;
	sim->manager = manager;
	return 0;
}

static struct cgroup *sim_cgroup(u64 id)
{
	struct cgroup *cgroup;

	if (id)
		return cgroup_get_from_id(id);
	rcu_read_lock();
	cgroup = task_dfl_cgroup(current);
	if (!cgroup_tryget(cgroup))
		cgroup = ERR_PTR(-ENOENT);
	rcu_read_unlock();
	return cgroup;
}

static int sim_add_tenant(struct sim *sim, const struct sluice_sim_record *record)
{
	struct sim_tenant *tenant = &sim->tenant[record->tenant];
	struct cgroup *cgroup;

	if (tenant->known)
		return -EEXIST;
	if (record->c > SLUICE_GPU_CLASS_PREEMPTIBLE)
		return -EINVAL;
	cgroup = sim_cgroup(record->b);
	if (IS_ERR(cgroup))
		return PTR_ERR(cgroup);
	tenant->known = true;
	tenant->owner.cgroup = cgroup;
	tenant->owner.id = (struct sluice_gpu_identity){
		.gpu = sim->gpu,
		.tenant_class = record->c,
		.va_space = (u64)sim->gpu << 32 | (record->tenant + 1),
		.cgroup_id = cgroup_id(cgroup),
		.owner_tgid = record->a,
	};
	return 0;
}

static int sim_act(struct sim *sim, const struct sluice_sim_record *record)
{
	struct sim_tenant *tenant = &sim->tenant[record->tenant];

	switch (record->kind) {
	case SLUICE_SIM_TENANT:
		return sim_add_tenant(sim, record);
	case SLUICE_SIM_TICK:
		return 0;
	}
	if (!tenant->known)
		return -ENOENT;
	switch (record->kind) {
	case SLUICE_SIM_ALLOC:
		return sim_alloc(sim, tenant, record->b, record->a);
	case SLUICE_SIM_FREE:
		return sim_free(sim, tenant, record->b, record->a);
	case SLUICE_SIM_ACCESS:
		return record->c > 1 ? -EINVAL :
				       sim_access(sim, tenant, record->b, record->a, record->c);
	case SLUICE_SIM_TAKE:
		return sim_take(sim, tenant, record->b, record->a);
	case SLUICE_SIM_TASK:
		return sim_task_create(sim, tenant, record->a, record->b, record->c);
	case SLUICE_SIM_BIND:
		return sim_task_bind(sim, record->a, record->b);
	case SLUICE_SIM_TIMESLICE:
		return sim_task_timeslice(sim, record->a, record->b, record->c);
	case SLUICE_SIM_SUBMIT:
		return sim_task_submit(sim, record->a, record->b, record->c);
	case SLUICE_SIM_DESTROY:
		return sim_task_destroy(sim, record->a, record->b);
	default:
		return -EINVAL;
	}
}

/* Lets everything before a record's time happen, preemptions included. */
static void sim_advance(struct sim *sim, u64 time_ns)
{
	sim_serve_batch(sim);
	sim->time_ns = time_ns;
	sluice_gpu_flush(sim->manager);
	sim_tasks_run(sim);
}

static int sim_record(struct sim *sim, const struct sluice_sim_record *record)
{
	if (record->kind == SLUICE_SIM_CONFIG)
		return sim_configure(sim, record);
	if (!sim->manager)
		return -ENODEV;
	if (record->tenant >= SLUICE_SIM_TENANTS || record->time_ns < sim->time_ns)
		return -EINVAL;
	if (record->time_ns != sim->time_ns || record->kind != SLUICE_SIM_ACCESS)
		sim_advance(sim, record->time_ns);
	return sim_act(sim, record);
}

/* A wrong record ends the write: what it gives is the bytes before it, or its error. */
static ssize_t sim_write(struct file *file, const char __user *from, size_t count, loff_t *offset)
{
	struct sim *sim = file->private_data;
	struct sluice_sim_record *records;
	size_t done = 0;
	int err = 0;

	if (!count || count % sizeof(*records))
		return -EINVAL;
	records = kmalloc_array(SIM_COPY, sizeof(*records), GFP_KERNEL);
	if (!records)
		return -ENOMEM;
	mutex_lock(&sim->lock);
	while (!err && done < count) {
		size_t part = min(count - done, SIM_COPY * sizeof(*records)), i;

		if (copy_from_user(records, from + done, part)) {
			err = -EFAULT;
			break;
		}
		for (i = 0; !err && i < part / sizeof(*records); i++) {
			err = sim_record(sim, &records[i]);
			done += err ? 0 : sizeof(*records);
		}
		if (signal_pending(current))
			err = err ?: -ERESTARTSYS;
		cond_resched();
	}
	mutex_unlock(&sim->lock);
	kfree(records);
	return done ?: err;
}

static void sim_report_tenant(struct seq_buf *out, int number, const struct sim_tenant *tenant)
{
	const struct {
		const char *name;
		u64 value;
	} lines[] = {
		{ "hits", tenant->hits },
		{ "faults", tenant->faults },
		{ "pages_in", tenant->pages_in },
		{ "pages_out", tenant->pages_out },
		{ "evictions", tenant->evictions },
		{ "stall_ns", tenant->stall_ns },
		{ "jobs", tenant->jobs },
		{ "refused", tenant->refused },
		{ "latency_sum_ns", tenant->latency_sum_ns },
		{ "latency_p50_ns", sim_latency_quantile(tenant, 50) },
		{ "latency_p99_ns", sim_latency_quantile(tenant, 99) },
		{ "latency_max_ns", tenant->latency_max_ns },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(lines); i++)
		seq_buf_printf(out, "tenant.%d.%s %llu\n", number, lines[i].name, lines[i].value);
}

static void sim_report(struct sim *sim, struct seq_buf *out)
{
	int i;

	seq_buf_printf(out, "clock_ns %llu\nstall_ns %llu\nbatches %llu\nevictions %llu\n",
		       sim_now(sim), sim->stall_ns, sim->batches, sim->evictions);
	seq_buf_printf(out, "used_chunks %u\nunused_chunks %u\npreemptions %llu\n",
		       sim->used_count, sim->unused_count, sim->preemptions);
	for (i = 0; i < SLUICE_SIM_TENANTS; i++) {
		if (sim->tenant[i].known)
			sim_report_tenant(out, i, &sim->tenant[i]);
	}
	for (i = 0; i < SLUICE_SIM_TASKS; i++) {
		const struct sim_task *task = sim->task[i];

		if (task)
			seq_buf_printf(out, "task.%u.%u.timeslice_us %llu\ntask.%u.%u.interleave %u\n",
				       task->runlist, task->tsg, task->timeslice_us,
				       task->runlist, task->tsg, task->interleave);
	}
}

/* The whole report in one read, then the end of the file, then anew. */
static ssize_t sim_read(struct file *file, char __user *to, size_t count, loff_t *offset)
{
	struct sim *sim = file->private_data;
	struct seq_buf out;
	ssize_t length;
	char *text;

	text = kvzalloc(SIM_REPORT_BYTES, GFP_KERNEL);
	if (!text)
		return -ENOMEM;
	seq_buf_init(&out, text, SIM_REPORT_BYTES);
	mutex_lock(&sim->lock);
	if (!sim->manager) {
		length = -ENODEV;
	} else if (sim->reported) {
		sim->reported = false;
		length = 0;
	} else {
		sim_advance(sim, sim->time_ns);
		sim_report(sim, &out);
		length = seq_buf_used(&out);
		if (seq_buf_has_overflowed(&out) || length > count)
			length = -EMSGSIZE;
		else if (copy_to_user(to, text, length))
			length = -EFAULT;
		else
			sim->reported = true;
	}
	mutex_unlock(&sim->lock);
	kvfree(text);
	return length;
}

static const struct file_operations sim_fops = {
	.owner = THIS_MODULE,
	.open = sim_open,
	.release = sim_release,
	.write = sim_write,
	.read = sim_read,
};

static struct miscdevice sim_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "sluice_sim",
	.fops = &sim_fops,
	.mode = 0600,
};

module_misc_device(sim_device);

MODULE_DESCRIPTION("A GPU memory manager and scheduler without a GPU, to test policies");
MODULE_AUTHOR("The Sluice authors");
MODULE_LICENSE("GPL");
