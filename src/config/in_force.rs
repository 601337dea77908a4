// SPDX-License-Identifier: MIT OR Apache-2.0
//! A configuration as plain keys and values, to compare what a program was
//! started with with what the file says now: whose each key is, what differs, and
//! what makes the file's value take effect.

use std::collections::BTreeMap;

use serde::Serialize;

use super::schema::Config;

/// Keys by their full name, `swap.size`, with their values as the file spells them,
/// `"8G"`. A key that is not set is not there.
pub type Settings = BTreeMap<String, String>;

/// The sections that the store reads, all of them once: a store that takes over goes
/// on with the text that the first one had.
const OF_STORE: [&str; 7] = ["swap", "tier", "cuda", "vulkan", "spill", "nbd", "log"];
/// The sections that `sluiced` decides by; it reads them anew when it is reloaded.
const OF_CONTROL: [&str; 3] = ["battery", "control", "metrics"];
/// Keys of the store that `sluiced` goes by too: it watches the GPUs for others.
const OF_BOTH: [&str; 2] = ["cuda.library", "tier.reserve"];
/// A key of `sluiced` that a reload does not change.
pub const CONTROL_AT_START: &str = "log.level";

/// What makes a value of the file take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// Another store, which begins without a page.
    StoreStart,
    /// Another store of the program that is installed now, which takes the pages over.
    StoreReload,
    /// `sluiced` reads the file anew.
    ControlReload,
    /// `sluiced` starts anew; the store goes on meanwhile.
    ControlRestart,
}

impl Effect {
    /// What a person does for it.
    #[must_use]
    pub fn by(self) -> &'static str {
        match self {
            Self::StoreStart => "sluice off && sluice on, or a reboot",
            Self::StoreReload => "systemctl reload sluice-store",
            Self::ControlReload => "systemctl reload sluiced",
            Self::ControlRestart => "systemctl restart sluiced",
        }
    }
}

/// A key whose value in force is not the configured one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its full name.
    pub key: String,
    /// The value in force; `None`: not set.
    pub running: Option<String>,
    /// The configured value; `None`: not set.
    pub configured: Option<String>,
    /// What makes the configured value take effect.
    pub effect: Effect,
}

/// What the store goes by.
#[must_use]
pub fn of_store(config: &Config) -> Settings {
    settings(config, |key| in_one_of(key, &OF_STORE))
}

/// What `sluiced` goes by.
#[must_use]
pub fn of_control(config: &Config) -> Settings {
    settings(config, |key| {
        in_one_of(key, &OF_CONTROL) || OF_BOTH.contains(&key) || key == CONTROL_AT_START
    })
}

/// What is configured and not in force, by what makes it take effect and then by key.
/// `control`: what `sluiced` goes by; `None`: it does not run, so that nothing waits
/// for it.
#[must_use]
pub fn pending(store: &Settings, control: Option<&Settings>, configured: &Config) -> Vec<Change> {
    let mut found = differences(store, &of_store(configured), |_| Effect::StoreStart);
    if let Some(control) = control {
        found.extend(differences(control, &of_control(configured), |key| match key {
            CONTROL_AT_START => Effect::ControlRestart,
            _ => Effect::ControlReload,
        }));
    }
    found.sort_by(|a, b| (a.effect, &a.key).cmp(&(b.effect, &b.key)));
    found
}

fn differences(
    running: &Settings,
    configured: &Settings,
    effect: impl Fn(&str) -> Effect,
) -> Vec<Change> {
    let only_configured = configured.keys().filter(|key| !running.contains_key(*key));
    running
        .keys()
        .chain(only_configured)
        .filter(|key| running.get(*key) != configured.get(*key))
        .map(|key| Change {
            key: key.clone(),
            running: running.get(key).cloned(),
            configured: configured.get(key).cloned(),
            effect: effect(key),
        })
        .collect()
}

fn in_one_of(key: &str, sections: &[&str]) -> bool {
    key.split_once('.').is_some_and(|(section, _)| sections.contains(&section))
}

fn settings(config: &Config, wanted: impl Fn(&str) -> bool) -> Settings {
    let table = toml::Table::try_from(config).expect("plain data has a form in TOML");
    let mut found = Settings::new();
    flatten("", &table, &mut found);
    found.retain(|key, _| wanted(key));
    found
}

fn flatten(prefix: &str, table: &toml::Table, found: &mut Settings) {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        match value.as_table() {
            Some(inner) => flatten(&format!("{key}."), inner, found),
            None => {
                found.insert(key, value.to_string());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::check::check;

    const RUNNING: &str = "[swap]\nsize = \"1G\"\n[tier]\nkind = \"ram\"\n[spill]\npath = \"/s\"\n";

    fn config(more: &str) -> Config {
        let text = format!("{RUNNING}{more}");
        check(&text).unwrap_or_else(|problems| panic!("{text}\n{problems:?}"))
    }

    fn seen(more: &str) -> Vec<(String, Option<String>, Option<String>, Effect)> {
        let running = config("");
        let (store, control) = (of_store(&running), of_control(&running));
        pending(&store, Some(&control), &config(more))
            .into_iter()
            .map(|change| (change.key, change.running, change.configured, change.effect))
            .collect()
    }

    #[test]
    fn every_key_is_somebodys() {
        let config = config(
            "[battery]\non_battery = \"shrink\"\nshrink_to = \"64M\"\n\
             [control]\nidle_target = \"64M\"\n[policies]\neviction = \"eviction_lfu\"\n",
        );
        let mut all = Settings::new();
        let table = toml::Table::try_from(&config).unwrap();
        flatten("", &table, &mut all);
        let (store, control) = (of_store(&config), of_control(&config));
        for key in all.keys().filter(|key| !key.starts_with("policies.")) {
            assert!(store.contains_key(key) || control.contains_key(key), "{key}");
        }
        let both: Vec<_> = store.keys().filter(|key| control.contains_key(*key)).collect();
        assert_eq!(both, ["log.level", "tier.reserve"]);
        assert_eq!(store["swap.size"], "\"1G\"");
        assert_eq!(store["nbd.dead_connection_timeout_s"], "86400");
        assert_eq!(control["battery.shrink_to"], "\"64M\"");
        assert_eq!(store.get("swap.min_size"), None);
    }

    #[test]
    fn what_is_the_same_waits_for_nothing() {
        assert_eq!(seen(""), []);
        // Written out, and still the default.
        assert_eq!(seen("[nbd]\nio_timeout_ms = 100\n[battery]\non_battery = \"stop\"\n"), []);
        // Neither program goes by it.
        assert_eq!(seen("[policies]\neviction = \"eviction_lfu\"\n"), []);
    }

    #[test]
    fn each_change_is_told_with_what_makes_it_take_effect() {
        let some = |text: &str| Some(text.to_owned());
        let found = seen(
            "[nbd]\nindex = 4\n[battery]\nthreshold = 40\n\
             [control]\nidle_target = \"128M\"\n[log]\nlevel = \"debug\"\n",
        );
        let expected = [
            ("log.level", some("\"info\""), some("\"debug\""), Effect::StoreStart),
            ("nbd.index", None, some("4"), Effect::StoreStart),
            ("battery.threshold", some("100"), some("40"), Effect::ControlReload),
            ("control.idle_target", None, some("\"128M\""), Effect::ControlReload),
            ("log.level", some("\"info\""), some("\"debug\""), Effect::ControlRestart),
        ];
        let expected: Vec<_> = expected
            .map(|(key, running, now, effect)| (key.to_owned(), running, now, effect))
            .into();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_gone_from_the_file_is_a_change_too() {
        let before = config("");
        let text = "[swap]\nsize = \"1G\"\n[tier]\nkind = \"ram\"\n";
        let after = check(text).unwrap();
        let found = pending(&of_store(&before), None, &after);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&*found[0].key, &found[0].configured), ("spill.path", &None));
        assert_eq!(found[0].running.as_deref(), Some("\"/s\""));
    }

    #[test]
    fn nothing_waits_for_a_control_plane_that_does_not_run() {
        let before = config("");
        let found = pending(&of_store(&before), None, &config("[battery]\nthreshold = 40\n"));
        assert_eq!(found, []);
    }
}
