// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's own announcements of devices (`NETLINK_KOBJECT_UEVENT`), for a
//! machine without `UPower`: a power supply that changed.

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, bind, recv, socket_with};
use tokio::sync::mpsc;

use crate::engine::error::{Error, Kind, Result};

/// The multicast group that the kernel sends to; udev's own is 2.
const KERNEL: u32 = 1;
/// Far more than an announcement has.
const MOST: usize = 8192;

/// Listens for announcements about power supplies, in a thread that ends with
/// the process. One message for each; those that were not taken yet count once.
///
/// Errors: `Io` where the machine gives no such socket.
pub fn listen() -> Result<mpsc::Receiver<()>> {
    let failed = |errno: Errno| {
        Error::new(Kind::Io, "cannot listen for the kernel's announcements of devices")
            .with_source(std::io::Error::from(errno))
    };
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket =
        socket_with(AddressFamily::NETLINK, kind, flags, Some(KOBJECT_UEVENT)).map_err(failed)?;
    bind(&socket, &SocketAddrNetlink::new(0, KERNEL)).map_err(failed)?;
    let (announce, announced) = mpsc::channel(1);
    std::thread::spawn(move || {
        let mut buffer = [0_u8; MOST];
        while !announce.is_closed() {
            let about_power = match recv(&socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => is_about_power(&buffer[..length]),
                // One that was lost may have been about power.
                Err(Errno::NOBUFS) => true,
                Err(Errno::INTR) => false,
                Err(errno) => {
                    tracing::warn!("the kernel's announcements of devices: {errno}");
                    return;
                }
            };
            if about_power {
                // Full: one that was not taken yet says the same.
                let _ = announce.try_send(());
            }
        }
    });
    Ok(announced)
}

/// An announcement is `ACTION@PATH`, then `KEY=VALUE` each ended by a zero.
fn is_about_power(message: &[u8]) -> bool {
    message.split(|byte| *byte == 0).any(|line| line == b"SUBSYSTEM=power_supply")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_power_supplies_are_announced() {
        let about = |subsystem: &str| {
            let text =
                format!("change@/devices/x\0ACTION=change\0SUBSYSTEM={subsystem}\0SEQNUM=7\0");
            is_about_power(text.as_bytes())
        };
        assert!(about("power_supply"));
        assert!(!about("power_supply2"));
        assert!(!about("block"));
        assert!(!is_about_power(b""));
    }
}
