// SPDX-License-Identifier: GPL-2.0-only
/*
 * The trial of memory policies. A policy may answer in time and in range and still be
 * bad: that shows in the faults of the GPU, which its manager reports. They are counted
 * in windows of the manager's clock. When a policy is attached, the mean of the windows
 * before is what it is measured by; while it is on trial, too many windows in a row with
 * more than its percentage of that bypass it.
 *
 * Only in that time: later, more faults may as well be other work. For the same reason
 * windows with hardly any faults are not looked at. Of several policies the one that was
 * attached last is judged. A replacement is measured by what was before the first one, so
 * that it need not be as good as what it replaces.
 */
#include "internal.h"

static bool sluice_on_gpu(const struct sluice_attachment *attachment,
			  const struct sluice_gpu_manager *manager)
{
	return attachment->type == SLUICE_TYPE_MEM &&
	       (attachment->scope.gpu == SLUICE_GPU_ANY ||
		attachment->scope.gpu == manager->gpu);
}

/* Faults of a window before now; 0 if too few windows are known. */
static u32 sluice_mean_before(const struct sluice_fault_rate *rate)
{
	u32 count = min(rate->windows, SLUICE_FAULT_WINDOWS_BEFORE), i;
	u64 sum = 0;

	if (count < SLUICE_FAULT_WINDOWS_NEEDED)
		return 0;
	for (i = 0; i < count; i++)
		sum += rate->before[i];
	return div_u64(sum, count);
}

void sluice_trial_begin(struct sluice_attachment *attachment)
{
	struct sluice_gpu_manager *manager;

	list_for_each_entry(manager, &sluice_managers, node) {
		struct sluice_fault_rate *rate = &manager->rate;
		unsigned long flags;

		if (!sluice_on_gpu(attachment, manager))
			continue;
		spin_lock_irqsave(&rate->lock, flags);
		rate->judged = attachment;
		rate->baseline = sluice_mean_before(rate);
		rate->left = SLUICE_FAULT_WINDOWS_TRIAL;
		rate->over = 0;
		spin_unlock_irqrestore(&rate->lock, flags);
	}
}

void sluice_trial_again(struct sluice_attachment *attachment)
{
	struct sluice_gpu_manager *manager;

	list_for_each_entry(manager, &sluice_managers, node) {
		struct sluice_fault_rate *rate = &manager->rate;
		unsigned long flags;

		spin_lock_irqsave(&rate->lock, flags);
		if (rate->judged == attachment) {
			rate->left = SLUICE_FAULT_WINDOWS_TRIAL;
			rate->over = 0;
		}
		spin_unlock_irqrestore(&rate->lock, flags);
	}
}

void sluice_trial_forget(const struct sluice_attachment *attachment)
{
	struct sluice_gpu_manager *manager;

	list_for_each_entry(manager, &sluice_managers, node) {
		struct sluice_fault_rate *rate = &manager->rate;
		unsigned long flags;

		spin_lock_irqsave(&rate->lock, flags);
		if (rate->judged == attachment)
			rate->judged = NULL;
		spin_unlock_irqrestore(&rate->lock, flags);
	}
}

/* Looks at a window that is over. With the lock held. */
static void sluice_close_window(struct sluice_fault_rate *rate)
{
	struct sluice_attachment *judged = rate->judged;
	bool on_trial = judged && rate->left && rate->baseline;

	if (rate->faults < SLUICE_FAULT_WINDOW_LEAST)
		return;
	if (on_trial) {
		u32 percent = READ_ONCE(judged->scope.fault_percent);

		rate->left--;
		if ((u64)rate->faults * 100 > (u64)rate->baseline * percent) {
			if (++rate->over == SLUICE_FAULT_WINDOWS_OVER) {
				const struct sluice_charge charge = {
					.faults = rate->faults,
					.before = rate->baseline,
				};

				sluice_distrust(judged, SLUICE_BYPASS_FAULTS, &charge);
			}
			/* Not what the next policy is to be measured by. */
			return;
		}
		rate->over = 0;
	}
	rate->before[rate->windows++ % SLUICE_FAULT_WINDOWS_BEFORE] = rate->faults;
}

void sluice_gpu_report_faults(struct sluice_gpu_manager *manager, u32 faults, u64 now_ns)
{
	struct sluice_fault_rate *rate = &manager->rate;
	unsigned long flags;

	spin_lock_irqsave(&rate->lock, flags);
	if (now_ns >= rate->window_end_ns) {
		sluice_close_window(rate);
		rate->faults = 0;
		rate->window_end_ns = now_ns + SLUICE_FAULT_WINDOW_NS;
	}
	rate->faults += faults;
	spin_unlock_irqrestore(&rate->lock, flags);
}
EXPORT_SYMBOL_GPL(sluice_gpu_report_faults);
