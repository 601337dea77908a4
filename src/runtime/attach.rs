// SPDX-License-Identifier: MIT OR Apache-2.0
//! Gives the kernel one device: sockets, netlink attach, queue timer, swap.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::block::nbd::connection::TRANSMISSION_FLAGS;
use crate::block::nbd::netlink::{ConnectSpec, Family};
use crate::config::schema::{Config, Nbd};
use crate::engine::units::{ByteLen, PAGE_BYTES};
use crate::host::queue;
use crate::host::swap::{self, Discard, Overwrite, Signature};

/// How long the kernel may take to show a device it has accepted.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an index may stay busy: udev looks at a device that was just detached.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);

/// A connected pair of stream sockets: the server's end, the kernel's end.
pub fn sockets() -> Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .context("cannot make a socket pair for the kernel")
}

/// A device that the kernel has.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its number.
    pub index: u32,
    /// Its node.
    pub path: PathBuf,
    /// Its size.
    pub size: ByteLen,
    /// What the kernel knows us by.
    pub backend: String,
}

impl Device {
    /// The device of this number.
    pub fn new(index: u32, size: ByteLen, backend: String) -> Self {
        Self { index, path: PathBuf::from(format!("/dev/nbd{index}")), size, backend }
    }

    fn name(&self) -> String {
        format!("nbd{}", self.index)
    }
}

/// What every identifier of ours begins with.
pub const BACKEND_PREFIX: &str = "sluice:";

/// An identifier that no other device has. `number` is the device's position
/// among ours.
pub fn new_backend(number: usize) -> Result<String> {
    let uuid = swap::new_uuid(Path::new("/"))?;
    let random = u64::from_be_bytes(*uuid.first_chunk().unwrap_or(&[0; 8]));
    Ok(format!("{BACKEND_PREFIX}{number}:{random:016x}"))
}

/// Attaches the kernel's end of a socket whose other end is being served.
/// `number` is the device's position among ours.
pub fn attach(
    family: &mut Family,
    nbd: &Nbd,
    number: u32,
    size: ByteLen,
    backend: String,
    kernel_end: OwnedFd,
) -> Result<Device> {
    let spec = ConnectSpec {
        index: nbd.index.map(|first| first + number),
        size_bytes: size.0,
        block_bytes: PAGE_BYTES as u32,
        server_flags: TRANSMISSION_FLAGS,
        timeout_s: 0,
        dead_conn_timeout_s: u32::try_from(nbd.dead_connection_timeout_s).unwrap_or(u32::MAX),
        backend_identifier: backend.clone(),
        sockets: &[kernel_end.as_fd()],
        patience: BUSY_PATIENCE,
    };
    let index = family.connect(&spec)?;
    // The kernel has its own reference; ours would hide its end of file.
    drop(kernel_end);
    let device = Device::new(index, size, backend);
    if let Err(error) = settle(&device, nbd) {
        family.disconnect(index)?;
        return Err(error);
    }
    Ok(device)
}

fn settle(device: &Device, nbd: &Nbd) -> Result<()> {
    queue::wait_until_live(Path::new("/"), &device.name(), device.size, PATIENCE)?;
    let timer = Duration::from_millis(u64::from(nbd.io_timeout_ms));
    queue::set_io_timeout(Path::new("/"), &device.name(), timer)?;
    Ok(())
}

/// Makes the device a swap area and switches it on.
pub fn swap_on(config: &Config, device: &Device) -> Result<()> {
    let signature = Signature { uuid: swap::new_uuid(Path::new("/"))?, label: "sluice".to_owned() };
    swap::write_signature(&device.path, &signature, Overwrite::BlankOrOurs)?;
    let discard = if config.swap.discard { Discard::Both } else { Discard::None };
    let priority = i16::try_from(config.swap.priority).ok().filter(|priority| *priority >= 0);
    swap::swapon(&device.path, priority, discard)?;
    Ok(())
}
