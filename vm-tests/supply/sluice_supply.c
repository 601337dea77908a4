// SPDX-License-Identifier: GPL-2.0-only
/*
 * A laptop's power supplies without a laptop: an adapter and a battery whose state
 * is two parameters, each change announced as the kernel announces real ones.
 *
 *   echo 0  >/sys/module/sluice_supply/parameters/online
 *   echo 41 >/sys/module/sluice_supply/parameters/capacity
 */
#include <linux/module.h>
#include <linux/power_supply.h>

static int online = 1;
static int capacity = 80;
static struct power_supply *adapter, *battery;

static int adapter_get(struct power_supply *supply, enum power_supply_property property,
		       union power_supply_propval *value)
{
	if (property != POWER_SUPPLY_PROP_ONLINE)
		return -EINVAL;
	value->intval = online != 0;
	return 0;
}

static int battery_get(struct power_supply *supply, enum power_supply_property property,
		       union power_supply_propval *value)
{
	switch (property) {
	case POWER_SUPPLY_PROP_STATUS:
		value->intval = online ? POWER_SUPPLY_STATUS_CHARGING :
					 POWER_SUPPLY_STATUS_DISCHARGING;
		return 0;
	case POWER_SUPPLY_PROP_PRESENT:
		value->intval = 1;
		return 0;
	case POWER_SUPPLY_PROP_CAPACITY:
		value->intval = capacity;
		return 0;
	case POWER_SUPPLY_PROP_ENERGY_FULL:
	case POWER_SUPPLY_PROP_ENERGY_FULL_DESIGN:
		value->intval = 50000000;
		return 0;
	case POWER_SUPPLY_PROP_ENERGY_NOW:
		value->intval = capacity * 500000;
		return 0;
	case POWER_SUPPLY_PROP_POWER_NOW:
		value->intval = 10000000;
		return 0;
	default:
		return -EINVAL;
	}
}

static const enum power_supply_property adapter_properties[] = {
	POWER_SUPPLY_PROP_ONLINE,
};

static const enum power_supply_property battery_properties[] = {
	POWER_SUPPLY_PROP_STATUS,      POWER_SUPPLY_PROP_PRESENT,
	POWER_SUPPLY_PROP_CAPACITY,    POWER_SUPPLY_PROP_ENERGY_FULL,
	POWER_SUPPLY_PROP_ENERGY_NOW,  POWER_SUPPLY_PROP_ENERGY_FULL_DESIGN,
	POWER_SUPPLY_PROP_POWER_NOW,
};

static const struct power_supply_desc adapter_desc = {
	.name = "sluice_adapter",
	.type = POWER_SUPPLY_TYPE_MAINS,
	.properties = adapter_properties,
	.num_properties = ARRAY_SIZE(adapter_properties),
	.get_property = adapter_get,
};

static const struct power_supply_desc battery_desc = {
	.name = "sluice_battery",
	.type = POWER_SUPPLY_TYPE_BATTERY,
	.properties = battery_properties,
	.num_properties = ARRAY_SIZE(battery_properties),
	.get_property = battery_get,
};

static int announce(const char *text, const struct kernel_param *param)
{
	int err = param_set_int(text, param);

	/* Also called for parameters on insmod's command line, before there is a supply. */
	if (!err && adapter && battery) {
		power_supply_changed(adapter);
		power_supply_changed(battery);
	}
	return err;
}

static const struct kernel_param_ops announced = {
	.set = announce,
	.get = param_get_int,
};

module_param_cb(online, &announced, &online, 0644);
MODULE_PARM_DESC(online, "Whether the adapter is plugged in");
module_param_cb(capacity, &announced, &capacity, 0644);
MODULE_PARM_DESC(capacity, "The battery's level in percent");

static int __init supply_init(void)
{
	struct power_supply *made = power_supply_register(NULL, &adapter_desc, NULL);

	if (IS_ERR(made))
		return PTR_ERR(made);
	adapter = made;
	made = power_supply_register(NULL, &battery_desc, NULL);
	if (IS_ERR(made)) {
		power_supply_unregister(adapter);
		return PTR_ERR(made);
	}
	battery = made;
	return 0;
}

static void __exit supply_exit(void)
{
	power_supply_unregister(battery);
	power_supply_unregister(adapter);
}

module_init(supply_init);
module_exit(supply_exit);
MODULE_DESCRIPTION("Power supplies for tests");
MODULE_LICENSE("GPL");
