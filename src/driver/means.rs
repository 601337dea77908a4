// SPDX-License-Identifier: MIT OR Apache-2.0
//! By which means a configured policy is in force: the hooks of the patched driver, a
//! parameter of the stock one, or nothing, and why. Pure; parameters are compared and
//! never written.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use super::facts::{Asks, Facts};
use crate::config::policies::{Placed, Policies};

/// What a parameter of the stock `nvidia-uvm` has to be for a policy.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Stock {
    /// The parameter.
    pub parameter: String,
    value: u64,
    tunable: Option<String>,
    least: u64,
    most: u64,
    /// What is not as with the policy.
    pub likeness: String,
}

/// The parameter without which the others decide nothing.
const ENABLE: &str = "uvm_perf_prefetch_enable";

static STOCK: LazyLock<BTreeMap<String, Stock>> = LazyLock::new(|| {
    toml::from_str(include_str!("stock.toml")).expect("the table that is built in is right")
});

impl Stock {
    /// What stands for that policy where the driver asks none.
    pub fn of(policy: &str) -> Option<&'static Self> {
        STOCK.get(policy)
    }

    /// The value by the policy's tunables; none if the driver does not take it.
    pub fn value(&self, tunables: Option<&BTreeMap<String, u64>>) -> Option<u64> {
        let configured = self.tunable.as_ref().and_then(|name| tunables?.get(name).copied());
        let value = configured.unwrap_or(self.value);
        (self.least..=self.most).contains(&value).then_some(value)
    }
}

/// What the module `sluice_gpu` says, if it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Running {
    /// The memory managers that have registered.
    pub managers: Vec<String>,
    /// The attached policies by name, and whether each is bypassed.
    pub attached: BTreeMap<String, bool>,
}

/// By which means a policy is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "means")]
pub enum Means {
    /// That module asks it.
    Hooks {
        /// Of the driver, or the simulated GPU.
        module: String,
    },
    /// A parameter of the stock driver is what it has to be.
    Parameter {
        /// Its name.
        name: String,
        /// Its value, now and wanted.
        value: u64,
        /// What is not as with the policy.
        likeness: String,
    },
    /// By none: it is a wish.
    Nothing {
        /// One clause for each means that there could be.
        why: Vec<String>,
        /// What would put it in force.
        #[serde(skip_serializing_if = "Option::is_none")]
        next: Option<String>,
    },
}

/// How it is with one configured policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// `eviction`, `prefetch` or `scheduling`.
    pub key: &'static str,
    /// The policy.
    pub policy: String,
    /// For one GPU only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// For one control group only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// By which means it is in force.
    #[serde(flatten)]
    pub means: Means,
}

/// How it is with each configured policy.
pub fn standings(policies: &Policies, facts: &Facts, running: &Running) -> Vec<Standing> {
    let standing = |one: Placed<'_>| Standing {
        key: one.key,
        policy: one.policy.to_owned(),
        gpu: one.scope.and_then(|scope| scope.gpu),
        cgroup: one
            .scope
            .and_then(|scope| Some(scope.cgroup.as_ref()?.to_string_lossy().into_owned())),
        means: means(&one, policies, facts, running),
    };
    policies.placed().map(standing).collect()
}

fn means(one: &Placed<'_>, policies: &Policies, facts: &Facts, running: &Running) -> Means {
    let mut why = Vec::new();
    let mut next = match hooks(one, facts, running) {
        Ok(module) => return Means::Hooks { module },
        Err(not) => {
            why.push(not.why);
            not.next
        }
    };
    match parameter(one, policies, facts) {
        Some(Ok(means)) => return means,
        Some(Err(not)) => {
            why.push(not.why);
            next = next.or(not.next);
        }
        None => {}
    }
    Means::Nothing { why, next }
}

/// Why a means is not there, and what would bring it.
struct Not {
    why: String,
    next: Option<String>,
}

impl Not {
    fn new(why: impl Into<String>, next: Option<&str>) -> Self {
        Self { why: why.into(), next: next.map(str::to_owned) }
    }
}

/// The module that asks the policy.
fn hooks(one: &Placed<'_>, facts: &Facts, running: &Running) -> Result<String, Not> {
    let part = if one.key == "scheduling" { "nvidia" } else { "nvidia_uvm" };
    let is_manager = |name: &str| running.managers.iter().any(|manager| manager == name);
    // Who runs tasks does not register with sluice_gpu; who manages memory does.
    let asks = match one.key {
        "scheduling" => facts.asks(part) == Asks::Yes,
        _ => is_manager("nvidia-uvm"),
    };
    // Where there is a real GPU, what a simulated one does is not the question.
    let simulates = facts.module(part).is_none() && facts.module("sluice_sim").is_some();
    let asker = asks.then_some(part).or_else(|| simulates.then_some("sluice_sim"));
    let name = one.attachment();
    match (asker, running.attached.get(&name)) {
        (Some(asker), Some(false)) => Ok(asker.to_owned()),
        (Some(_), Some(true)) => Err(Not {
            why: "it is bypassed, since it was too slow, wrong or of no use".into(),
            next: Some(format!("sluice policy show {name}")),
        }),
        (Some(asker), None) => Err(Not::new(
            format!("{asker} asks policies, and this one is not attached"),
            Some("sluice policy apply"),
        )),
        (None, _) => Err(nobody_asks(part, facts)),
    }
}

fn nobody_asks(part: &str, facts: &Facts) -> Not {
    let anew = "load it anew, after sluice_gpu; `sluice driver check` says who holds it";
    match facts.asks(part) {
        Asks::NotLoaded => Not::new(format!("{part} is not loaded"), None),
        Asks::Stock => Not::new(format!("{part} is the stock driver's and asks no policy"), None),
        Asks::Unknown => Not::new(
            format!("the kernel does not show in /proc/kallsyms whether {part} asks policies"),
            None,
        ),
        Asks::WithoutSluice => Not::new(
            format!("{part} is patched, and sluice_gpu, which it would ask, is not loaded"),
            Some(anew),
        ),
        Asks::TooEarly => Not::new(
            format!("{part} is patched, and was loaded before sluice_gpu, so that it asks nobody"),
            Some(anew),
        ),
        Asks::Yes => Not::new(
            format!("{part} is patched, and sluice_gpu has not taken it; dmesg says why"),
            Some(anew),
        ),
    }
}

/// What a parameter of `nvidia-uvm` does for the policy; none if that is not loaded.
fn parameter(one: &Placed<'_>, policies: &Policies, facts: &Facts) -> Option<Result<Means, Not>> {
    facts.module("nvidia_uvm")?;
    let Some(stock) = Stock::of(one.policy).filter(|_| one.key == "prefetch") else {
        return Some(Err(Not::new(
            format!("no parameter of the stock driver does what {} does", one.policy),
            None,
        )));
    };
    let Stock { parameter, likeness, least, most, .. } = stock;
    if one.scope.is_some() {
        let why = format!("{parameter} holds for every GPU and program, not for a scope");
        return Some(Err(Not::new(why, None)));
    }
    let Some(wanted) = stock.value(policies.parameters.get(one.policy)) else {
        let why = format!("its tunable is beyond {least} to {most}, which {parameter} takes");
        return Some(Err(Not::new(why, None)));
    };
    let Some(present) = facts.parameters.get(parameter) else {
        let why = format!("this release of the driver has no parameter {parameter}");
        return Some(Err(Not::new(why, None)));
    };
    let is_off = facts.parameters.get(ENABLE).is_some_and(|value| value == "0");
    if is_off && parameter != ENABLE {
        return Some(Err(Not {
            why: format!("{ENABLE} is 0, so that nothing is prefetched, whatever {parameter} is"),
            next: Some(format!("remove {ENABLE}=0 from the files below /etc/modprobe.d")),
        }));
    }
    if present.parse() == Ok(wanted) {
        return Some(Ok(Means::Parameter {
            name: parameter.clone(),
            value: wanted,
            likeness: likeness.clone(),
        }));
    }
    Some(Err(Not {
        why: format!("{parameter}, which comes near it at {wanted}, is {present}"),
        next: Some(format!(
            "`options nvidia-uvm {parameter}={wanted}` in a file below /etc/modprobe.d, then load \
             nvidia-uvm anew or reboot; `sluice driver check` says who holds it"
        )),
    }))
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:?}", self.key, self.policy)?;
        if let Some(gpu) = self.gpu {
            write!(f, ", GPU {gpu}")?;
        }
        if let Some(cgroup) = &self.cgroup {
            write!(f, ", cgroup {cgroup}")?;
        }
        match &self.means {
            Means::Hooks { module } => write!(f, "\n  in force: {module} asks it"),
            Means::Parameter { name, value, likeness } => {
                write!(f, "\n  in force by the stock driver's {name}={value}: {likeness}")
            }
            Means::Nothing { why, next } => {
                write!(f, "\n  advisory, in force by nothing: {}", why.join("; "))?;
                next.as_ref().map_or(Ok(()), |next| write!(f, "\n  next: {next}"))
            }
        }
    }
}
