// SPDX-License-Identifier: GPL-2.0-only
//! `apply`: from `[policies]` of the configuration to attached policies.
//!
//! First all that is wanted is opened and verified by the kernel; if anything of
//! it is refused, nothing is changed. Then what an earlier configuration wanted
//! is compared with it: what serves the same scope for the same key is replaced
//! without a moment between, the rest detached or attached. Policies that were
//! loaded by hand are left alone.

use std::path::Path;

use anyhow::{Result, anyhow};
use sluice::config::policies::{LoaderExit, Policies};

use crate::args::{ApplyArgs, PolicyArgs, ScopeArgs};
use crate::commands::{attach, attach_pinned, replace_pinned};
use crate::configured;
use crate::failure::Failure;
use crate::netlink::{Connection, Policy as Attached};
use crate::object::{ANY_GPU, Policy, cgroup_id};
use crate::pins;

/// A policy that the configuration wants.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    key: &'static str,
    policy: String,
    /// The name it is attached by.
    name: String,
    gpu: Option<u32>,
    cgroup: Option<std::path::PathBuf>,
    budget_us: Option<u32>,
    max_faults: Option<u32>,
    settings: Vec<(String, u64)>,
}

/// The hooks that a policy must have one of to be what its key says.
fn hooks_of(key: &str) -> &'static [&'static str] {
    match key {
        "eviction" => &["block_activate", "block_access", "evict_prepare"],
        "prefetch" => &["page_prefetch", "page_prefetch_iter"],
        _ => &["task_init", "bind", "timeslice_control", "task_destroy"],
    }
}

fn wanted(policies: &Policies) -> Vec<Wanted> {
    policies
        .placed()
        // One that does both is one load.
        .filter(|one| one.key != "prefetch" || one.choice.eviction.as_deref() != Some(one.policy))
        .map(|one| {
            let settings = policies.parameters.get(one.policy).into_iter().flatten();
            Wanted {
                key: one.key,
                policy: one.policy.to_owned(),
                name: one.attachment(),
                gpu: one.scope.and_then(|scope| scope.gpu),
                cgroup: one.scope.and_then(|scope| scope.cgroup.clone()),
                budget_us: one.choice.budget_us,
                max_faults: one.choice.max_faults_percent,
                settings: settings.map(|(name, value)| (name.clone(), *value)).collect(),
            }
        })
        .collect()
}

impl Wanted {
    /// Opens it and has the kernel verify it.
    fn load(&self, folder: &Path) -> Result<Policy> {
        let policy = Policy::load(
            &PolicyArgs {
                policy: self.policy.clone(),
                settings: self.settings.clone(),
                policies: folder.to_path_buf(),
            },
            &ScopeArgs {
                gpu: self.gpu,
                cgroup: self.cgroup.clone(),
                budget_us: self.budget_us,
                max_faults: self.max_faults,
            },
            Some(&self.name),
        )?;
        let hooks = policy.hooks()?;
        if hooks.iter().any(|hook| hooks_of(self.key).contains(&hook.as_str())) {
            return Ok(policy);
        }
        Err(Failure::new(
            format!(
                "{} = {:?}: the policy has none of the hooks {}",
                self.key,
                self.policy,
                hooks_of(self.key).join(", ")
            ),
            "name another one under [policies]; sluice policy list shows the installed ones",
        )
        .into())
    }

    fn has_scope_of(&self, attached: &Attached) -> Result<bool> {
        let cgroup = self.cgroup.as_deref().map(cgroup_id).transpose()?;
        Ok(self.gpu.unwrap_or(ANY_GPU) == attached.gpu && cgroup.unwrap_or(0) == attached.cgroup)
    }
}

/// What is done about what an earlier configuration left.
#[derive(Debug, Default, PartialEq, Eq)]
struct Plan {
    detach: Vec<String>,
    /// The name of what is there, and the place of what replaces it.
    replace: Vec<(String, usize)>,
    attach: Vec<usize>,
}

/// `serves` says whether the wanted one of that place is for the scope of the
/// attached one of that name.
fn plan(
    wanted: &[Wanted],
    marked: &[(String, String)],
    mut serves: impl FnMut(usize, &str) -> Result<bool>,
) -> Result<Plan> {
    let mut plan = Plan::default();
    for (name, key) in marked {
        let mut heir = None;
        for (place, one) in wanted.iter().enumerate() {
            let taken = plan.replace.iter().any(|(_, other)| *other == place);
            // A name that another one still has can't be taken over in place.
            let free = one.name == *name || !marked.iter().any(|(other, _)| *other == one.name);
            if heir.is_none() && !taken && free && one.key == key && serves(place, name)? {
                heir = Some(place);
            }
        }
        match heir {
            Some(place) => plan.replace.push((name.clone(), place)),
            None => plan.detach.push(name.clone()),
        }
    }
    plan.attach = (0..wanted.len())
        .filter(|place| !plan.replace.iter().any(|(_, other)| other == place))
        .collect();
    Ok(plan)
}

/// Runs the command.
pub fn run(args: &ApplyArgs) -> Result<()> {
    let policies = configured::read(&args.config)?;
    let exit = policies.as_ref().map_or(LoaderExit::Keep, |policies| policies.loader_exit);
    let wanted = policies.as_ref().map(wanted).unwrap_or_default();
    let loaded: Vec<Policy> =
        wanted.iter().map(|one| one.load(&args.policies)).collect::<Result<_>>()?;
    // Where nothing is pinned nor will be, there need not even be a BPF file system.
    let pins_some = matches!(exit, LoaderExit::Keep) && !loaded.is_empty();
    let lock = (pins_some || Path::new(pins::ROOT).exists()).then(pins::lock).transpose()?;
    let marked = pins::marked()?;
    match exit {
        LoaderExit::Keep => {
            keep(&wanted, &loaded, &marked)?;
            ready()
        }
        LoaderExit::Detach => {
            for (name, _) in &marked {
                detach(name)?;
            }
            let mut links = Vec::new();
            for policy in &loaded {
                links.extend(attach(policy)?);
                println!("attached {} until this process ends", policy.name);
            }
            // This process stays; who unloads others must not wait for its end.
            drop(lock);
            ready()?;
            loop {
                // The links live exactly as long as this process; signals end it.
                std::thread::park();
                debug_assert!(links.len() >= loaded.len());
            }
        }
    }
}

fn keep(wanted: &[Wanted], loaded: &[Policy], marked: &[(String, String)]) -> Result<()> {
    let by_hand = wanted.iter().map(|one| one.name.as_str()).find(|name| {
        !pins::kinds(name).is_empty() && !marked.iter().any(|(other, _)| other == name)
    });
    if let Some(name) = by_hand {
        return Err(Failure::new(
            format!("{name} is to be attached, but one of that name was loaded by hand"),
            format!("sluice policy unload {name}, then sluice policy apply; nothing was changed"),
        )
        .into());
    }
    // Without anything attached the module need not even be there.
    let attached = if marked.is_empty() { Vec::new() } else { Connection::open()?.policies()? };
    let plan = plan(wanted, marked, |place, name| {
        let Some(found) = attached.iter().find(|attached| attached.name == name) else {
            return Ok(false);
        };
        Ok(loaded[place].kinds() == pins::kinds(name) && wanted[place].has_scope_of(found)?)
    })?;
    for name in &plan.detach {
        detach(name)?;
    }
    for (name, place) in &plan.replace {
        replace_pinned(name, &loaded[*place])?;
        println!("replaced {name} by {}", loaded[*place].name);
    }
    let mut new: Vec<&str> = Vec::new();
    for place in plan.attach {
        let policy = &loaded[place];
        if let Err(error) = attach_pinned(policy, Some(wanted[place].key)) {
            for name in new {
                detach(name)?;
            }
            return Err(error);
        }
        println!("attached {}", policy.name);
        new.push(&policy.name);
    }
    if wanted.is_empty() {
        println!("no policies are configured");
    }
    Ok(())
}

fn detach(name: &str) -> Result<()> {
    pins::remove(name)?;
    println!("detached {name}");
    Ok(())
}

/// Tells the service manager, if there is one, that all is attached.
fn ready() -> Result<()> {
    use std::io::Write;
    std::io::stdout().flush()?;
    sd_notify::notify(&[sd_notify::NotifyState::Ready])
        .map_err(|error| anyhow!("cannot tell the service manager that all is attached: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(text: &str) -> Vec<Wanted> {
        let policies = sluice::config::check::policies(text).expect("a good file");
        wanted(&policies.expect("a section"))
    }

    fn names(all: &[Wanted]) -> Vec<(&'static str, &str)> {
        all.iter().map(|one| (one.key, one.name.as_str())).collect()
    }

    const TWO_SCOPES: &str = "[policies]\neviction = \"lfu\"\nprefetch = \"stride\"\n\
         [policies.parameters.stride]\nconfidence = 3\n\
         [[policies.scope]]\ngpu = 1\nprefetch = \"stride\"\n";

    #[test]
    fn each_scope_has_its_own_name_and_the_policys_parameters() {
        let all = configured(TWO_SCOPES);
        assert_eq!(
            names(&all),
            [("eviction", "lfu"), ("prefetch", "stride"), ("prefetch", "stride-1")]
        );
        assert_eq!(all[0].settings, []);
        assert_eq!(all[1].settings, [("confidence".to_owned(), 3)]);
        assert_eq!((all[2].gpu, &all[2].settings), (Some(1), &all[1].settings));
    }

    #[test]
    fn a_policy_that_does_both_is_loaded_once() {
        let all = configured("[policies]\neviction = \"both\"\nprefetch = \"both\"\n");
        assert_eq!(names(&all), [("eviction", "both")]);
    }

    fn marked(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(name, key)| ((*name).to_owned(), (*key).to_owned())).collect()
    }

    #[test]
    fn what_serves_the_same_is_replaced_and_the_rest_goes() {
        let all = configured(TWO_SCOPES);
        let before = marked(&[("mru", "eviction"), ("slices", "scheduling")]);
        let plan = plan(&all, &before, |_, _| Ok(true)).expect("a plan");
        assert_eq!(plan.replace, [("mru".to_owned(), 0)]);
        assert_eq!(plan.detach, ["slices"]);
        assert_eq!(plan.attach, [1, 2]);
    }

    #[test]
    fn a_name_that_another_one_has_is_not_taken_over() {
        // lfu moves from its place to mru's, which would need its name twice.
        let all = configured("[policies]\neviction = \"lfu\"\n");
        let before = marked(&[("lfu", "prefetch"), ("mru", "eviction")]);
        let plan = plan(&all, &before, |_, _| Ok(true)).expect("a plan");
        assert_eq!((plan.replace.len(), plan.attach), (0, vec![0]));
        assert_eq!(plan.detach, ["lfu", "mru"]);
    }

    #[test]
    fn another_scope_is_no_place_to_take_over() {
        let all = configured("[policies]\neviction = \"lfu\"\n");
        let before = marked(&[("lfu", "eviction")]);
        let plan = plan(&all, &before, |_, _| Ok(false)).expect("a plan");
        assert_eq!((plan.detach, plan.attach), (vec!["lfu".to_owned()], vec![0]));
    }
}
