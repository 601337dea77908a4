// SPDX-License-Identifier: GPL-2.0-only
/*
 * What both kinds of ops have in common: what a program may do, and what the plain
 * members may say. Refusals go to the verifier's log where there is one, else to the
 * kernel's.
 */
#include <linux/bpf_verifier.h>
#include <linux/cgroup.h>
#include <linux/ctype.h>
#include <linux/filter.h>

#include "internal.h"

/*
 * Hooks run under spinlocks of a GPU driver, so a helper is here only if its cost is
 * bounded and small. bpf_loop (eight million rounds), bpf_trace_printk and everything
 * that walks or formats are not.
 */
static const struct bpf_func_proto *sluice_get_func_proto(enum bpf_func_id id,
							  const struct bpf_prog *prog)
{
	switch (id) {
	case BPF_FUNC_map_lookup_elem:
	case BPF_FUNC_map_update_elem:
	case BPF_FUNC_map_delete_elem:
	case BPF_FUNC_map_lookup_percpu_elem:
	case BPF_FUNC_ktime_get_ns:
	case BPF_FUNC_get_smp_processor_id:
	case BPF_FUNC_get_prandom_u32:
	case BPF_FUNC_ringbuf_output:
	case BPF_FUNC_ringbuf_reserve:
	case BPF_FUNC_ringbuf_submit:
	case BPF_FUNC_ringbuf_discard:
		return bpf_base_func_proto(id, prog);
	default:
		return NULL;
	}
}

static bool sluice_is_valid_access(int off, int size, enum bpf_access_type type,
				   const struct bpf_prog *prog, struct bpf_insn_access_aux *info)
{
	return bpf_tracing_btf_ctx_access(off, size, type, prog, info);
}

static int sluice_btf_struct_access(struct bpf_verifier_log *log, const struct bpf_reg_state *reg,
				    int off, int size)
{
	bpf_log(log, "sluice_gpu: what a hook is given can be read only (write of %d bytes at %d); request changes with sluice_bpf_*\n",
		size, off);
	return -EACCES;
}

const struct bpf_verifier_ops sluice_verifier_ops = {
	.get_func_proto = sluice_get_func_proto,
	.is_valid_access = sluice_is_valid_access,
	.btf_struct_access = sluice_btf_struct_access,
};

/*
 * Helpers are chosen above, but the kernel's own functions (kfuncs) are open to every
 * struct_ops program, and with them the iterators, whose rounds the verifier does not
 * walk. The module's functions are in its own BTF, which a call names by off. What is left
 * are loops that the verifier walks in full, up to its million instructions: but it
 * verifies a global function once, not once for each call, and may_goto not at all.
 *
 * The verifier asks before it rewrites anything, so the instructions, those of all
 * subprograms, are as they were loaded.
 */
static const char *sluice_unbounded(const struct bpf_prog *prog)
{
	u32 i;

	for (i = 0; i < prog->len; i++) {
		const struct bpf_insn *insn = &prog->insnsi[i];

		if (insn->code == (BPF_JMP | BPF_CALL) &&
		    insn->src_reg == BPF_PSEUDO_KFUNC_CALL && !insn->off)
			return "calls a function of the kernel that is not sluice_bpf_*";
		if (insn->code == (BPF_JMP | BPF_JCOND))
			return "has a loop with may_goto";
	}
	/* The first one is the program itself. */
	for (i = 1; prog->aux->func_info_aux && i < prog->aux->func_info_cnt; i++) {
		if (prog->aux->func_info_aux[i].linkage == BTF_FUNC_GLOBAL)
			return "has a function that is not static";
	}
	return NULL;
}

int sluice_check_member(const struct btf_type *t, const struct btf_member *member,
			const struct bpf_prog *prog)
{
	const char *unbounded = sluice_unbounded(prog);

	if (prog->sleepable) {
		pr_err("sluice_gpu: program %s may sleep; hooks are called under spinlocks\n",
		       prog->aux->name);
		return -EINVAL;
	}
	if (unbounded) {
		pr_err("sluice_gpu: program %s %s; what it costs would have no bound\n",
		       prog->aux->name, unbounded);
		return -EINVAL;
	}
	return 0;
}

static bool sluice_name_valid(const char *name)
{
	size_t length = strnlen(name, SLUICE_GPU_NAME_SIZE), i;

	if (!length || length == SLUICE_GPU_NAME_SIZE)
		return false;
	for (i = 0; i < length; i++) {
		if (!isalnum(name[i]) && name[i] != '-' && name[i] != '_')
			return false;
	}
	return true;
}

/* Takes over the plain members as they are; the functions are the kernel's business. */
int sluice_init_member(const struct btf_type *t, const struct btf_member *member, void *kdata,
		       const void *udata, size_t plain_offset)
{
	if (__btf_member_bit_offset(t, member) / 8 != plain_offset)
		return 0;
	memcpy(kdata + plain_offset, udata + plain_offset, sizeof(struct sluice_gpu_plain));
	return 1;
}

int sluice_validate(const struct sluice_gpu_plain *plain, u32 hooks)
{
	if (plain->version != SLUICE_GPU_ABI) {
		pr_err("sluice_gpu: a policy is of version %u, this module of version %u\n",
		       plain->version, SLUICE_GPU_ABI);
		return -EPROTO;
	}
	if (!sluice_name_valid(plain->name)) {
		pr_err("sluice_gpu: a policy's name must be 1 to %d letters, digits, - or _\n",
		       SLUICE_GPU_NAME_SIZE - 1);
		return -EINVAL;
	}
	if (plain->flags || plain->reserved) {
		pr_err("sluice_gpu: policy %s has flags %#x or a reserved word that is not 0\n",
		       plain->name, plain->flags);
		return -EINVAL;
	}
	if (plain->budget_ns && (plain->budget_ns < SLUICE_GPU_BUDGET_MIN_NS ||
				 plain->budget_ns > SLUICE_GPU_BUDGET_MAX_NS)) {
		pr_err("sluice_gpu: policy %s has budget_ns %u, not %u to %u\n", plain->name,
		       plain->budget_ns, SLUICE_GPU_BUDGET_MIN_NS, SLUICE_GPU_BUDGET_MAX_NS);
		return -EINVAL;
	}
	if (plain->fault_percent && (plain->fault_percent < SLUICE_GPU_FAULTS_MIN_PERCENT ||
				     plain->fault_percent > SLUICE_GPU_FAULTS_MAX_PERCENT)) {
		pr_err("sluice_gpu: policy %s has fault_percent %u, not %u to %u\n", plain->name,
		       plain->fault_percent, SLUICE_GPU_FAULTS_MIN_PERCENT,
		       SLUICE_GPU_FAULTS_MAX_PERCENT);
		return -EINVAL;
	}
	if (!hooks) {
		pr_err("sluice_gpu: policy %s has no hook\n", plain->name);
		return -EINVAL;
	}
	return 0;
}

/* Fills the scope, with a reference to its cgroup. */
static int sluice_plain_scope(const struct sluice_gpu_plain *plain, struct sluice_scope *scope)
{
	struct cgroup *cgroup = NULL;

	if (plain->cgroup_id) {
		cgroup = cgroup_get_from_id(plain->cgroup_id);
		if (IS_ERR(cgroup)) {
			pr_err("sluice_gpu: policy %s is for cgroup %llu, which is not there\n",
			       plain->name, plain->cgroup_id);
			return PTR_ERR(cgroup);
		}
	}
	scope->gpu = plain->gpu;
	scope->budget_ns = plain->budget_ns ?: SLUICE_GPU_BUDGET_DEFAULT_NS;
	scope->fault_percent = plain->fault_percent ?: SLUICE_GPU_FAULTS_DEFAULT_PERCENT;
	scope->cgroup_id = plain->cgroup_id;
	scope->cgroup = cgroup;
	strscpy(scope->name, plain->name, sizeof(scope->name));
	return 0;
}

void sluice_scope_put(struct sluice_scope *scope)
{
	if (scope->cgroup)
		cgroup_put(scope->cgroup);
	scope->cgroup = NULL;
}

/* .reg, .unreg and .update of both kinds. */
int sluice_reg(enum sluice_type type, const void *ops, const struct sluice_gpu_plain *plain,
	       u32 hooks, const struct bpf_link *link)
{
	struct sluice_scope scope;
	int err;

	if (!link) {
		pr_err("sluice_gpu: policy %s has no link; without one it would outlive a crash of its loader\n",
		       plain->name);
		return -EOPNOTSUPP;
	}
	err = sluice_plain_scope(plain, &scope);
	if (err)
		return err;
	err = sluice_attach(type, ops, &scope, hooks);
	if (err)
		sluice_scope_put(&scope);
	return err;
}

int sluice_update(const void *new_ops, const void *old_ops, const struct sluice_gpu_plain *plain,
		  u32 hooks)
{
	struct sluice_scope scope;
	int err;

	err = sluice_plain_scope(plain, &scope);
	if (err)
		return err;
	err = sluice_replace(new_ops, old_ops, &scope, hooks);
	sluice_scope_put(&scope);
	return err;
}
