// SPDX-License-Identifier: GPL-2.0-only
//! What the module says over generic netlink, family `sluice_gpu`; the numbers
//! are those of `kernel-module/include/sluice_gpu_netlink.h`.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result, bail};

use crate::failure::Failure;

/// The hooks, by `enum sluice_gpu_hook`.
pub const HOOKS: [&str; 9] = [
    "page_prefetch",
    "page_prefetch_iter",
    "block_activate",
    "block_access",
    "evict_prepare",
    "task_init",
    "bind",
    "timeslice_control",
    "task_destroy",
];

/// The outcomes of a call, by `enum sluice_gpu_outcome`.
pub const OUTCOMES: [&str; 8] = [
    "applied",
    "nothing",
    "repeat",
    "stale",
    "conflict",
    "bad_action",
    "bad_range",
    "bad_identity",
];

/// Why a policy is bypassed, by `enum sluice_bypass`.
pub const BYPASSES: [&str; 4] = ["none", "slow", "wrong", "faults"];

const EVENTS: [&str; 4] = ["attached", "replaced", "detached", "bypassed"];

const FAMILY: &[u8] = b"sluice_gpu\0";
const CONTROL: u16 = 0x10;
const CONTROL_GET_FAMILY: u8 = 3;
const CONTROL_ID: u16 = 1;
const CONTROL_NAME: u16 = 2;
const CONTROL_GROUPS: u16 = 7;
const CONTROL_GROUP_ID: u16 = 2;

const INFO: u8 = 1;
const POLICIES: u8 = 2;

const ABI: u16 = 2;
const MANAGER: u16 = 3;
const ID: u16 = 4;
const NAME: u16 = 5;
const TYPE: u16 = 6;
const GPU: u16 = 7;
const CGROUP: u16 = 8;
const BUDGET: u16 = 9;
const REPLACED: u16 = 10;
const BYPASS: u16 = 11;
const BYPASS_HOOK: u16 = 12;
const BYPASS_NS: u16 = 13;
const HOOK: u16 = 14;
const HOOK_INDEX: u16 = 15;
const HOOK_CALLS: u16 = 16;
const HOOK_TIME_NS: u16 = 17;
const HOOK_MAX_NS: u16 = 18;
const HOOK_OUTCOMES: u16 = 19;
const PREEMPTIONS: u16 = 20;
const EVENT: u16 = 21;
const FAULT_PERCENT: u16 = 22;
const BYPASS_FAULTS: u16 = 23;
const BYPASS_BEFORE: u16 = 24;

/// The counters of one hook of a policy.
#[derive(Clone, Debug, Default)]
pub struct Hook {
    /// Index into [`HOOKS`].
    pub index: u32,
    /// Calls so far.
    pub calls: u64,
    /// All time spent in them, nanoseconds.
    pub time_ns: u64,
    /// The longest of them, nanoseconds.
    pub max_ns: u64,
    /// Calls by [`OUTCOMES`].
    pub outcomes: Vec<u64>,
}

/// A policy that is attached.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Unique since the module was loaded.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// 0 memory, 1 scheduling.
    pub kind: u32,
    /// The GPU it serves, `u32::MAX` for all.
    pub gpu: u32,
    /// The cgroup it serves, 0 for all.
    pub cgroup: u64,
    /// The longest a call may take, nanoseconds.
    pub budget_ns: u32,
    /// How often another load took its place.
    pub replaced: u32,
    /// Index into [`BYPASSES`].
    pub bypass: u32,
    /// The hook and the duration (nanoseconds) of the call that led to it.
    pub bypass_at: Option<(u32, u64)>,
    /// Or the faults in 10 ms that led to it, and those before it was attached.
    pub bypass_faults: Option<(u32, u32)>,
    /// What faults may rise to on trial, percent.
    pub fault_percent: u32,
    /// Its hooks.
    pub hooks: Vec<Hook>,
    /// Preemptions done, without a task, refused.
    pub preemptions: Vec<u64>,
}

/// The module, as a whole.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// The version of its interface.
    pub abi: u32,
    /// Memory managers: GPU and name.
    pub managers: Vec<(u32, String)>,
}

/// A connection to the module.
pub struct Connection {
    socket: OwnedFd,
    family: u16,
    group: u32,
    sequence: u32,
}

/// One attribute: its number and payload.
type Attribute<'a> = (u16, &'a [u8]);

impl Connection {
    /// Finds the module's family.
    pub fn open() -> Result<Self> {
        // SAFETY: plain system call without pointers.
        let fd = unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_GENERIC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("cannot open a netlink socket");
        }
        // SAFETY: fd is open and owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut connection = Self { socket, family: CONTROL, group: 0, sequence: 0 };
        let mut payload = Vec::new();
        put(&mut payload, CONTROL_NAME, FAMILY);
        let replies = connection.ask(CONTROL_GET_FAMILY, 0, &payload).map_err(|error| {
            if error.raw_os_error() == Some(libc::ENOENT) {
                anyhow::Error::new(Failure::new(
                    "the kernel module sluice_gpu is not loaded",
                    "modprobe sluice_gpu",
                ))
            } else {
                anyhow::Error::new(error).context("cannot ask for the netlink family sluice_gpu")
            }
        })?;
        let reply = replies.first().context("no answer on the netlink family sluice_gpu")?;
        for (kind, value) in attributes(reply) {
            match kind {
                CONTROL_ID => connection.family = u16_of(value)?,
                CONTROL_GROUPS => {
                    for (_, group) in attributes(value) {
                        for (kind, value) in attributes(group) {
                            if kind == CONTROL_GROUP_ID {
                                connection.group = u32_of(value)?;
                            }
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(connection)
    }

    /// What the module says of itself.
    pub fn module(&mut self) -> Result<Module> {
        let mut module = Module::default();
        for reply in self.ask(INFO, 0, &[]).map_err(refused)? {
            for (kind, value) in attributes(&reply) {
                match kind {
                    ABI => module.abi = u32_of(value)?,
                    MANAGER => {
                        let mut gpu = 0;
                        let mut name = String::new();
                        for (kind, value) in attributes(value) {
                            match kind {
                                GPU => gpu = u32_of(value)?,
                                NAME => name = text_of(value),
                                _ => {}
                            }
                        }
                        module.managers.push((gpu, name));
                    }
                    _ => {}
                }
            }
        }
        Ok(module)
    }

    /// All attached policies.
    pub fn policies(&mut self) -> Result<Vec<Policy>> {
        let replies = self.ask(POLICIES, libc::NLM_F_DUMP as u16, &[]).map_err(refused)?;
        replies.iter().map(|reply| policy_of(reply)).collect()
    }

    /// Waits for events, each told to `tell` as a word and the policy.
    pub fn watch(&mut self, mut tell: impl FnMut(&str, &Policy) -> Result<()>) -> Result<()> {
        // SAFETY: the option's value is a u32 that outlives the call.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_NETLINK,
                libc::NETLINK_ADD_MEMBERSHIP,
                (&raw const self.group).cast(),
                size_of::<u32>() as libc::socklen_t,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error()).context("cannot join the group events");
        }
        eprintln!("watching the policies of the module sluice_gpu");
        loop {
            for message in messages(&self.receive()?)? {
                let event = attributes(message.body)
                    .find(|(kind, _)| *kind == EVENT)
                    .map(|(_, value)| u32_of(value))
                    .transpose()?;
                if let Some(event) = event {
                    let word = EVENTS.get(event as usize).copied().unwrap_or("unknown");
                    tell(word, &policy_of(message.body)?)?;
                }
            }
        }
    }

    /// Sends a request and gives the bodies of its replies.
    fn ask(&mut self, command: u8, flags: u16, payload: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        self.sequence += 1;
        let dump = flags & libc::NLM_F_DUMP as u16 != 0;
        let flags = flags | libc::NLM_F_REQUEST as u16 | libc::NLM_F_ACK as u16;
        let mut request = Vec::with_capacity(20 + payload.len());
        request.extend((20 + payload.len() as u32).to_ne_bytes());
        request.extend(self.family.to_ne_bytes());
        request.extend(flags.to_ne_bytes());
        request.extend(self.sequence.to_ne_bytes());
        request.extend(0u32.to_ne_bytes());
        request.extend([command, 1, 0, 0]);
        request.extend(payload);
        // SAFETY: the buffer is valid for its length during the call.
        let sent = unsafe {
            libc::send(self.socket.as_raw_fd(), request.as_ptr().cast(), request.len(), 0)
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut replies = Vec::new();
        loop {
            let buffer = self.receive()?;
            for message in messages(&buffer)? {
                if message.sequence != self.sequence {
                    continue;
                }
                match i32::from(message.kind) {
                    libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                        let status = message.body_of_control;
                        if status != 0 {
                            return Err(io::Error::from_raw_os_error(-status));
                        }
                        if !dump || i32::from(message.kind) == libc::NLMSG_DONE {
                            return Ok(replies);
                        }
                    }
                    _ => replies.push(message.body.to_vec()),
                }
            }
        }
    }

    fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0u8; 64 << 10];
        // SAFETY: the buffer is valid for its length during the call.
        let got = unsafe {
            libc::recv(self.socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0)
        };
        if got < 0 {
            return Err(io::Error::last_os_error());
        }
        buffer.truncate(got.cast_unsigned());
        Ok(buffer)
    }
}

fn refused(error: io::Error) -> anyhow::Error {
    if error.raw_os_error() == Some(libc::EPERM) {
        return Failure::new("the module answers the administrator only", "run it as root").into();
    }
    anyhow::Error::new(error).context("the module sluice_gpu does not answer")
}

struct Message<'a> {
    kind: u16,
    sequence: u32,
    /// The attributes, behind both headers.
    body: &'a [u8],
    /// The status word of an error or of the end of a dump.
    body_of_control: i32,
}

fn messages(buffer: &[u8]) -> io::Result<Vec<Message<'_>>> {
    let mut all = Vec::new();
    let mut rest = buffer;
    while rest.len() >= 16 {
        let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if length < 16 || length > rest.len() {
            return Err(io::Error::other(format!("a netlink message of {length} bytes")));
        }
        let payload = &rest[16..length];
        let status = payload.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
        all.push(Message {
            kind: u16::from_ne_bytes([rest[4], rest[5]]),
            sequence: u32::from_ne_bytes([rest[8], rest[9], rest[10], rest[11]]),
            body: payload.get(4..).unwrap_or_default(),
            body_of_control: status,
        });
        rest = rest.get(aligned(length)..).unwrap_or_default();
    }
    Ok(all)
}

fn attributes(body: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes([*rest.get(2)?, *rest.get(3)?]) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    })
}

fn policy_of(body: &[u8]) -> Result<Policy> {
    let mut policy = Policy::default();
    let mut bypass_hook = None;
    let mut bypass_faults = None;
    for (kind, value) in attributes(body) {
        match kind {
            ID => policy.id = u64_of(value)?,
            NAME => policy.name = text_of(value),
            TYPE => policy.kind = u32_of(value)?,
            GPU => policy.gpu = u32_of(value)?,
            CGROUP => policy.cgroup = u64_of(value)?,
            BUDGET => policy.budget_ns = u32_of(value)?,
            REPLACED => policy.replaced = u32_of(value)?,
            BYPASS => policy.bypass = u32_of(value)?,
            BYPASS_HOOK => bypass_hook = Some(u32_of(value)?),
            BYPASS_NS => policy.bypass_at = bypass_hook.zip(Some(u64_of(value)?)),
            FAULT_PERCENT => policy.fault_percent = u32_of(value)?,
            BYPASS_FAULTS => bypass_faults = Some(u32_of(value)?),
            BYPASS_BEFORE => policy.bypass_faults = bypass_faults.zip(Some(u32_of(value)?)),
            HOOK => policy.hooks.push(hook_of(value)?),
            PREEMPTIONS => policy.preemptions = words_of(value),
            _ => {}
        }
    }
    Ok(policy)
}

fn hook_of(body: &[u8]) -> Result<Hook> {
    let mut hook = Hook::default();
    for (kind, value) in attributes(body) {
        match kind {
            HOOK_INDEX => hook.index = u32_of(value)?,
            HOOK_CALLS => hook.calls = u64_of(value)?,
            HOOK_TIME_NS => hook.time_ns = u64_of(value)?,
            HOOK_MAX_NS => hook.max_ns = u64_of(value)?,
            HOOK_OUTCOMES => hook.outcomes = words_of(value),
            _ => {}
        }
    }
    if hook.outcomes.len() != OUTCOMES.len() {
        bail!(
            "the module counts {} outcomes, this program knows {}",
            hook.outcomes.len(),
            OUTCOMES.len()
        );
    }
    Ok(hook)
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

fn put(message: &mut Vec<u8>, kind: u16, value: &[u8]) {
    message.extend((4 + value.len() as u16).to_ne_bytes());
    message.extend(kind.to_ne_bytes());
    message.extend(value);
    message.resize(aligned(message.len()), 0);
}

fn u16_of(value: &[u8]) -> Result<u16> {
    Ok(u16::from_ne_bytes(*value.first_chunk().context("a netlink attribute is too short")?))
}

fn u32_of(value: &[u8]) -> Result<u32> {
    Ok(u32::from_ne_bytes(*value.first_chunk().context("a netlink attribute is too short")?))
}

fn u64_of(value: &[u8]) -> Result<u64> {
    Ok(u64::from_ne_bytes(*value.first_chunk().context("a netlink attribute is too short")?))
}

fn words_of(value: &[u8]) -> Vec<u64> {
    value.as_chunks().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect()
}

fn text_of(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nested(kind: u16, parts: &[(u16, Vec<u8>)]) -> Vec<u8> {
        let mut inner = Vec::new();
        for (kind, value) in parts {
            put(&mut inner, *kind, value);
        }
        let mut whole = Vec::new();
        put(&mut whole, kind | 0x8000, &inner);
        whole
    }

    #[test]
    fn a_policy_with_counters_is_read() {
        let mut body = Vec::new();
        put(&mut body, ID, &7u64.to_ne_bytes());
        put(&mut body, NAME, b"odd\0");
        put(&mut body, BYPASS, &1u32.to_ne_bytes());
        put(&mut body, BYPASS_HOOK, &3u32.to_ne_bytes());
        put(&mut body, BYPASS_NS, &99u64.to_ne_bytes());
        let outcomes: Vec<u8> = (0..8u64).flat_map(u64::to_ne_bytes).collect();
        body.extend(nested(
            HOOK,
            &[(HOOK_INDEX, 3u32.to_ne_bytes().to_vec()), (HOOK_OUTCOMES, outcomes)],
        ));
        let policy = policy_of(&body).expect("well formed");
        assert_eq!((policy.id, policy.name.as_str()), (7, "odd"));
        assert_eq!(policy.bypass_at, Some((3, 99)));
        assert_eq!(policy.hooks[0].index, 3);
        assert_eq!(policy.hooks[0].outcomes, (0..8).collect::<Vec<u64>>());
    }

    #[test]
    fn a_module_with_other_outcomes_is_refused() {
        let body = nested(HOOK, &[(HOOK_OUTCOMES, vec![0; 16])]);
        assert!(policy_of(&body).is_err());
    }

    #[test]
    fn a_message_longer_than_its_buffer_is_an_error() {
        let mut buffer = vec![0u8; 16];
        buffer[..4].copy_from_slice(&64u32.to_ne_bytes());
        assert!(messages(&buffer).is_err());
    }

    #[test]
    fn a_cut_attribute_ends_the_list() {
        let mut body = Vec::new();
        put(&mut body, ID, &7u64.to_ne_bytes());
        body.truncate(9);
        assert_eq!(attributes(&body).count(), 0);
    }
}
