// SPDX-License-Identifier: MIT OR Apache-2.0
//! `[policies]`: which GPU policies are loaded, for whom, with which tunables.
//! Whether a policy of that name is installed is the loader's to know.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use serde::Serialize;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use super::table::{Section, unknown};

/// `[policies]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Policies {
    /// What becomes of the policies when the loader ends.
    pub loader_exit: LoaderExit,
    /// Whom nothing more specific serves.
    #[serde(flatten)]
    pub choice: Choice,
    /// Tunables: policy, name, value.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, BTreeMap<String, u64>>,
    /// Policies for one GPU or cgroup.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scope: Vec<Scope>,
}

/// What becomes of the policies when the loader ends, in whatever way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LoaderExit {
    /// They stay attached.
    Keep,
    /// They are detached.
    Detach,
}

impl LoaderExit {
    /// Both, the default first.
    pub const ALL: [Self; 2] = [Self::Keep, Self::Detach];

    /// The choice's name in the file.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Detach => "detach",
        }
    }
}

/// Policies by what they decide; `None`: as without a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// Which memory goes when some has to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eviction: Option<String>,
    /// What is brought in beside a faulted page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefetch: Option<String>,
    /// Timeslices and admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<String>,
    /// The longest that a call may take, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_us: Option<u32>,
    /// What the GPU's faults may rise to after loading, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_faults_percent: Option<u32>,
}

impl Choice {
    /// The policies by the keys that name them.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        [
            ("eviction", &self.eviction),
            ("prefetch", &self.prefetch),
            ("scheduling", &self.scheduling),
        ]
        .into_iter()
        .filter_map(|(key, name)| Some((key, name.as_deref()?)))
    }
}

/// One of `[[policies.scope]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scope {
    /// The GPU's number; `None`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The cgroup, as in `/machine.slice`, with all below it; `None`: everyone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// What serves there.
    #[serde(flatten)]
    pub choice: Choice,
}

/// A policy and its place in the section.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    /// `eviction`, `prefetch` or `scheduling`.
    pub key: &'static str,
    /// The policy.
    pub policy: &'a str,
    /// What else was chosen there.
    pub choice: &'a Choice,
    /// Whom it serves; `None`: whom nothing more specific serves.
    pub scope: Option<&'a Scope>,
    number: usize,
}

impl Placed<'_> {
    /// The name that it is attached by: the policy's, numbered in a scope.
    #[must_use]
    pub fn attachment(&self) -> String {
        match self.number {
            0 => self.policy.to_owned(),
            number => format!("{}-{number}", self.policy),
        }
    }
}

impl Policies {
    /// All policies, those for everyone first.
    pub fn placed(&self) -> impl Iterator<Item = Placed<'_>> {
        let scopes = self.scope.iter().map(|scope| (&scope.choice, Some(scope)));
        (0..).zip(std::iter::once((&self.choice, None)).chain(scopes)).flat_map(
            |(number, (choice, scope))| {
                choice.named().map(move |(key, policy)| Placed {
                    key,
                    policy,
                    choice,
                    scope,
                    number,
                })
            },
        )
    }
}

const CHOICE_KEYS: [&str; 5] =
    ["eviction", "prefetch", "scheduling", "budget_us", "max_faults_percent"];
/// The most scopes: names of attachments are numbered by them.
const MAX_SCOPES: usize = 15;
/// The longest name that can still be numbered.
const MAX_NAME: usize = 28;
/// The highest number of a GPU.
const MAX_GPU: u32 = 1023;

/// The section of the file `root`, or `None` if it has none.
pub(super) fn policies(
    root: &DeTable<'_>,
    text: &str,
    problems: &mut Vec<Problem>,
) -> Option<Policies> {
    let section = Section::find(root, text, "policies", problems);
    let own = ["loader_exit", "parameters", "scope"];
    section.refuse_others(&[&CHOICE_KEYS[..], &own].concat(), problems);
    if !section.is_present() {
        return None;
    }
    let loader_exit = section
        .choice("loader_exit", &LoaderExit::ALL.map(LoaderExit::name), problems)
        .map_or(LoaderExit::ALL[0], |placed| LoaderExit::ALL[placed.value]);
    let choice = choice(&section, problems);
    let scope = scopes(&section, text, problems);
    let all = scope.iter().map(|scope| &scope.choice).chain([&choice]);
    let chosen = all.flat_map(Choice::named).map(|(_, name)| name.to_owned()).collect();
    let parameters = parameters(&section, &chosen, problems);
    Some(Policies { loader_exit, choice, parameters, scope })
}

fn choice(section: &Section<'_, '_>, problems: &mut Vec<Problem>) -> Choice {
    let mut name = |key| {
        section.take(key, problems, |value: &DeValue<'_>| policy_name(value)).map(|it| it.value)
    };
    let (eviction, prefetch) = (name("eviction"), name("prefetch"));
    let scheduling = name("scheduling");
    let budget_us = section.integer("budget_us", 1..=1000_u32, problems);
    let max_faults_percent = section.integer("max_faults_percent", 101..=100_000_u32, problems);
    Choice { eviction, prefetch, scheduling, budget_us, max_faults_percent }
}

fn policy_name(value: &DeValue<'_>) -> Result<String, String> {
    let valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    value
        .as_str()
        .filter(|name| (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(valid))
        .map(str::to_owned)
        .ok_or_else(|| {
            format!(
                "write the name of a policy in quotes, 1 to {MAX_NAME} letters, digits, - or _, \
                 e.g. \"eviction_lfu\"; sluice policy list shows the installed ones"
            )
        })
}

fn scopes(section: &Section<'_, '_>, text: &str, problems: &mut Vec<Problem>) -> Vec<Scope> {
    let Some(list) = section.take("scope", problems, |value: &DeValue<'_>| {
        let tables = value.as_array().filter(|list| {
            list.len() <= MAX_SCOPES && list.iter().all(|item| item.get_ref().is_table())
        });
        tables.cloned().ok_or_else(|| {
            format!("write each scope as [[policies.scope]], {MAX_SCOPES} of them at most")
        })
    }) else {
        return Vec::new();
    };
    let mut all: Vec<Scope> = Vec::new();
    for item in &list.value {
        let Some(table) = item.get_ref().as_table() else { continue };
        let inner = Section::of("policies.scope", text, table);
        inner.refuse_others(&[&["gpu", "cgroup"], &CHOICE_KEYS[..]].concat(), problems);
        let before = problems.len();
        let gpu = inner.integer("gpu", 0..=MAX_GPU, problems);
        let cgroup = inner.take("cgroup", problems, |value: &DeValue<'_>| {
            value.as_str().map(PathBuf::from).filter(|path| path.is_absolute()).ok_or_else(|| {
                "write the cgroup's path below /sys/fs/cgroup in quotes, e.g. \"/machine.slice\""
                    .into()
            })
        });
        let cgroup = cgroup.map(|placed| placed.value);
        let choice = choice(&inner, problems);
        if problems.len() == before {
            let why = if gpu.is_none() && cgroup.is_none() {
                Some("names neither gpu nor cgroup; what serves all stands under [policies] itself")
            } else if choice.named().next().is_none() {
                Some("names no policy; write eviction, prefetch or scheduling")
            } else if all.iter().any(|other| other.gpu == gpu && other.cgroup == cgroup) {
                Some("is there already for that GPU and cgroup; write one for both")
            } else {
                None
            };
            problems.extend(why.map(|why| Problem {
                span: Some(item.span()),
                message: format!("[[policies.scope]] {why}"),
            }));
        }
        all.push(Scope { gpu, cgroup, choice });
    }
    all
}

fn parameters(
    section: &Section<'_, '_>,
    chosen: &BTreeSet<String>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    let Some(table) = section.take("parameters", problems, |value: &DeValue<'_>| {
        value.as_table().cloned().ok_or_else(|| {
            "write a section for each policy, e.g. [policies.parameters.eviction_lfu]".into()
        })
    }) else {
        return all;
    };
    let known: Vec<&str> = chosen.iter().map(String::as_str).collect();
    for (policy, values) in &table.value {
        let name = policy.get_ref().as_ref();
        let full = format!("policies.parameters.{name}");
        if !chosen.contains(name) {
            let message = if known.is_empty() {
                format!("[{full}]: no policy is chosen under [policies]")
            } else {
                unknown("policy", &full, name, &known, |near| format!("policies.parameters.{near}"))
            };
            problems.push(Problem { span: Some(policy.span()), message });
            continue;
        }
        let Some(values) = values.get_ref().as_table() else {
            problems.push(Problem {
                span: Some(values.span()),
                message: format!("{full} is a value; write a section: [{full}]"),
            });
            continue;
        };
        let mut own = BTreeMap::new();
        for (key, value) in values {
            let number = value
                .get_ref()
                .as_integer()
                .and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
            match number {
                Some(number) => {
                    own.insert(key.get_ref().to_string(), number);
                }
                None => problems.push(Problem {
                    span: Some(value.span()),
                    message: format!(
                        "{full}.{}: write a whole number from 0 on, without quotes",
                        key.get_ref()
                    ),
                }),
            }
        }
        all.insert(name.to_owned(), own);
    }
    all
}
