// SPDX-License-Identifier: GPL-2.0-only
//! What each command does.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};

use crate::args::{CheckArgs, Command, LoadArgs, PolicyArgs, ReplaceArgs, ScopeArgs};
use crate::baseline::Baseline;
use crate::failure::Failure;
use crate::netlink::Connection;
use crate::object::{Kind, Policy};
use crate::{apply, compile, configured, links, pins, render, trace};

/// Runs a command.
pub fn run(command: Command) -> Result<()> {
    match command {
        Command::List(output) => render::list(&mut Connection::open()?, output.json),
        Command::Show(args) => match &args.name {
            Some(name) => render::show(&mut Connection::open()?, name, args.output.json),
            None => configured::show(&args.config, args.output.json),
        },
        Command::Stats(output) => render::stats(&mut Connection::open()?, output.json),
        Command::Load(args) => load(&args),
        Command::Replace(args) => replace(&args),
        Command::Unload { name } => unload(&name),
        Command::Apply(args) => apply::run(&args),
        Command::Check(args) => check(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Build { source, headers } => {
            let object = compile::run(&source, &headers)?;
            println!("{}", object.display());
            Ok(())
        }
        Command::Watch => Connection::open()?.watch(|event, policy| {
            let mut out = std::io::stdout().lock();
            writeln!(out, "{event} {}", render::one_line(policy))?;
            Ok(out.flush()?)
        }),
    }
}

/// Attaches a policy for as long as the links exist.
pub fn attach(policy: &Policy) -> Result<Vec<(Kind, OwnedFd)>> {
    let mut attached = Vec::new();
    for kind in policy.kinds() {
        let map = policy.ready(kind)?;
        let link = links::create(map).map_err(|error| match error.raw_os_error() {
            Some(libc::EEXIST) => Failure::new(
                format!("another policy has a hook of {} for the same GPU and cgroup", policy.name),
                "sluice policy list shows it; replace or unload it, or choose another scope",
            ),
            _ => Failure::new(
                format!("the module sluice_gpu does not attach {}: {error}", policy.name),
                "dmesg | grep sluice_gpu says why",
            ),
        })?;
        attached.push((kind, link));
    }
    Ok(attached)
}

fn load(args: &LoadArgs) -> Result<()> {
    let policy = Policy::load(&args.policy, &args.scope, args.name.as_deref())?;
    if args.hold {
        let links = attach(&policy)?;
        println!("attached {} until this process ends", policy.name);
        std::io::stdout().flush()?;
        loop {
            // The links live exactly as long as this process; signals end it.
            std::thread::park();
            debug_assert!(!links.is_empty());
        }
    }
    let _lock = pins::lock()?;
    attach_pinned(&policy, None)?;
    println!("attached {}", policy.name);
    Ok(())
}

/// Attaches a policy for good, for a key of the configuration or by hand. To be called
/// under [`pins::lock`].
pub fn attach_pinned(policy: &Policy, key: Option<&str>) -> Result<()> {
    let folder = pins::reserve(&policy.name)?;
    // Before the first pin: killed in between, it is still known for whom it is.
    let marked = key.map_or(Ok(()), |key| pins::mark(&policy.name, key));
    let pinned = marked.and_then(|()| attach(policy)).and_then(|links| {
        for (kind, link) in links {
            let path = folder.join(kind.word());
            links::pin(link.as_fd(), &path)
                .with_context(|| format!("cannot pin {}", path.display()))?;
        }
        Ok(())
    });
    if let Err(error) = pinned {
        pins::remove(&policy.name)?;
        return Err(error);
    }
    Ok(())
}

fn replace(args: &ReplaceArgs) -> Result<()> {
    let _lock = pins::lock()?;
    let held = pins::kinds(&args.name);
    if held.is_empty() {
        return Err(absent(&args.name));
    }
    // The place that it takes is the old one's, so the scope is the old one's too.
    let old = Connection::open()?
        .policies()?
        .into_iter()
        .find(|policy| policy.name == args.name)
        .with_context(|| {
        format!("policy {} is pinned, but the module does not have it", args.name)
    })?;
    let scope = ScopeArgs {
        gpu: (old.gpu != crate::object::ANY_GPU).then_some(old.gpu),
        cgroup: render::cgroup_path(old.cgroup),
        budget_us: args.budget_us,
        max_faults: args.max_faults,
    };
    if old.cgroup != 0 && scope.cgroup.is_none() {
        bail!("the cgroup that {} serves is gone: unload it", args.name);
    }
    let policy = Policy::load(&args.policy, &scope, args.as_name.as_deref())?;
    if policy.name != args.name && !pins::kinds(&policy.name).is_empty() {
        return Err(Failure::new(
            format!("a policy named {} is attached as well", policy.name),
            "give another name with --as",
        )
        .into());
    }
    if policy.kinds() != held {
        return Err(Failure::new(
            format!("{} and {} have not the same kinds of ops", args.name, args.policy.policy),
            "unload the one, load the other",
        )
        .into());
    }
    replace_pinned(&args.name, &policy)?;
    println!("replaced {} by {}", args.name, policy.name);
    Ok(())
}

/// Puts a policy in the place of the pinned one of that name, which has the same kinds of ops.
pub fn replace_pinned(name: &str, policy: &Policy) -> Result<()> {
    for kind in policy.kinds() {
        let map = policy.ready(kind)?;
        let path = pins::path(name, kind);
        let link = links::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        links::update(link.as_fd(), map).map_err(|error| {
            Failure::new(
                format!("the module sluice_gpu keeps {name}: {error}"),
                "dmesg | grep sluice_gpu says why",
            )
        })?;
    }
    pins::rename(name, &policy.name)
}

fn unload(name: &str) -> Result<()> {
    let _lock = pins::lock()?;
    // Without pins, too: a loader that was killed in between leaves that.
    if !pins::exists(name) {
        return Err(absent(name));
    }
    pins::remove(name)?;
    println!("detached {name}");
    Ok(())
}

fn absent(name: &str) -> anyhow::Error {
    Failure::new(
        format!("no policy named {name} is attached"),
        "sluice policy list shows those that are; one held by `load --hold` ends with it",
    )
    .into()
}

fn check(args: &CheckArgs) -> Result<()> {
    let baseline = args.baseline.as_deref().map(Baseline::read).transpose()?;
    let mut problems = Vec::new();
    for name in &args.policies {
        let policy = Policy::load(
            &PolicyArgs {
                policy: name.clone(),
                settings: args.settings.clone(),
                policies: args.folder.clone(),
            },
            &ScopeArgs::default(),
            None,
        )?;
        for kind in policy.kinds() {
            policy.ready(kind)?;
        }
        for program in policy.programs()? {
            println!(
                "{} {}: {} instructions verified, {} bytes of code",
                policy.name, program.hook, program.verified, program.code_bytes
            );
            let baseline = baseline.as_ref();
            problems.extend(
                baseline
                    .and_then(|known| known.judge(&policy.name, &program.hook, program.verified)),
            );
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        format!("verifying costs more than it did:\n    {}", problems.join("\n    ")),
        "make the programs cheaper; or, if the cost is meant: make -C kernel-module verifier-cost",
    )
    .into())
}
