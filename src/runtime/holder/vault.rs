// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a holder keeps. All room is there from the start.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::message::Role;
use crate::host::handover;
use crate::host::kept::Locked;

/// Slabs that can be kept: a tebibyte.
pub const MAX_SLABS: usize = 16384;
/// Index, description, sockets, spill, program and libraries.
const MAX_OTHERS: usize = 256;
/// Descriptors that a holder, or a store, may have open.
pub const DESCRIPTORS: u64 = 32768;

/// One thing kept.
pub struct Thing {
    /// What it is of.
    pub role: Role,
    /// Which of them.
    pub number: u32,
    /// Bytes that are locked; 0: none.
    pub bytes: u64,
    fd: OwnedFd,
    _locked: Option<Locked>,
}

impl Thing {
    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The things kept.
pub struct Vault(Vec<Thing>);

impl Vault {
    /// An empty one with room for all that a store of the largest size has.
    pub fn new() -> Self {
        Self(Vec::with_capacity(MAX_SLABS + MAX_OTHERS))
    }

    /// Keeps a descriptor in place of an earlier one of the same role and number,
    /// locked first: what cannot be locked is not kept, and the earlier one stays.
    pub fn keep(&mut self, role: Role, number: u32, fd: OwnedFd, bytes: u64) -> Result<(), Errno> {
        let locked = (bytes > 0).then(|| Locked::map(fd.as_fd(), bytes)).transpose()?;
        let thing = Thing { role, number, bytes, fd, _locked: locked };
        if let Some(earlier) = self.0.iter_mut().find(|t| (t.role, t.number) == (role, number)) {
            let earlier = std::mem::replace(earlier, thing);
            if role == Role::Socket {
                // The kernel must see the end of the connection that this replaces.
                handover::cut(&earlier.fd);
            }
            return Ok(());
        }
        if self.0.len() == self.0.capacity() {
            return Err(Errno::NOSPC);
        }
        self.0.push(thing);
        Ok(())
    }

    /// Lets go of a thing, if it is kept.
    pub fn forget(&mut self, role: Role, number: u32) {
        if let Some(at) = self.0.iter().position(|t| (t.role, t.number) == (role, number)) {
            let thing = self.0.swap_remove(at);
            if role == Role::Socket {
                handover::cut(&thing.fd);
            }
        }
    }

    /// Ends the connections of a store that is dead: one of its threads may be
    /// stuck in a driver and keep its descriptors open, and the kernel takes no
    /// new connection for one that it thinks alive.
    pub fn cut_sockets(&mut self) {
        self.0.retain(|thing| {
            if thing.role == Role::Socket {
                handover::cut(&thing.fd);
            }
            thing.role != Role::Socket
        });
    }

    /// Whether pages may be among the things.
    pub fn holds_pages(&self) -> bool {
        self.find(Role::Index, 0).is_some()
    }

    /// A thing, if it is kept.
    pub fn find(&self, role: Role, number: u32) -> Option<&Thing> {
        self.0.iter().find(|thing| (thing.role, thing.number) == (role, number))
    }

    /// All things.
    pub fn iter(&self) -> std::slice::Iter<'_, Thing> {
        self.0.iter()
    }

    /// How many slabs are kept.
    pub fn slabs(&self) -> usize {
        self.0.iter().filter(|thing| thing.role == Role::Slab).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> OwnedFd {
        let memory = rustix::fs::memfd_create("thing", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memory, 4096).unwrap();
        memory
    }

    #[test]
    fn things_are_replaced_found_and_forgotten() {
        let mut vault = Vault::new();
        assert!(!vault.holds_pages());
        for number in [1, 2, 2] {
            vault.keep(Role::Slab, number, memory(), 4096).unwrap();
        }
        vault.keep(Role::Index, 0, memory(), 0).unwrap();
        assert_eq!((vault.slabs(), vault.holds_pages()), (2, true));
        vault.forget(Role::Slab, 1);
        vault.forget(Role::Slab, 1);
        assert!(vault.find(Role::Slab, 1).is_none());
        assert_eq!(vault.find(Role::Slab, 2).unwrap().bytes, 4096);
    }

    #[test]
    fn what_cannot_be_locked_leaves_the_earlier_one_in_place() {
        let mut vault = Vault::new();
        vault.keep(Role::Description, 0, memory(), 4096).unwrap();
        let (_, socket) = handover::pair().unwrap();
        assert!(vault.keep(Role::Description, 0, socket, 4096).is_err());
        assert!(vault.find(Role::Description, 0).is_some());
    }

    #[test]
    fn a_connection_ends_when_it_is_replaced_forgotten_or_its_store_is_dead() {
        let mut vault = Vault::new();
        let mut kept = || {
            let (kernel, server) = handover::pair().unwrap();
            vault.keep(Role::Socket, 0, server.try_clone().unwrap(), 0).unwrap();
            (kernel, server)
        };
        let (first, _alive) = kept();
        let (second, _alive_too) = kept();
        assert!(handover::is_gone(first.as_fd()));
        assert!(!handover::is_gone(second.as_fd()));
        vault.cut_sockets();
        assert!(handover::is_gone(second.as_fd()));
        assert!(vault.find(Role::Socket, 0).is_none());
    }

    #[test]
    fn room_never_grows() {
        let mut vault = Vault(Vec::with_capacity(1));
        let room = vault.0.capacity() as u32;
        for number in 0..room {
            vault.keep(Role::Slab, number, memory(), 0).unwrap();
        }
        assert_eq!(vault.keep(Role::Slab, room, memory(), 0), Err(Errno::NOSPC));
    }
}
