// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a store finds in its holder's hands.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use super::message::{Message, Role, slab_of};

/// See the module. Empty: this is the first store.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The index.
    pub index: Option<OwnedFd>,
    /// The description.
    pub description: Option<OwnedFd>,
    /// Slabs by tier and number.
    pub slabs: BTreeMap<(usize, u32), OwnedFd>,
    /// The spill, claimed.
    pub spill: Option<OwnedFd>,
    /// The executable and the libraries, by the number they are kept under.
    pub files: BTreeMap<(Role, u32), OwnedFd>,
}

impl Inventory {
    pub(super) fn add(&mut self, item: &Message, fd: OwnedFd) {
        match item.role {
            Role::Index => self.index = Some(fd),
            Role::Description => self.description = Some(fd),
            Role::Slab => {
                self.slabs.insert(slab_of(item.number), fd);
            }
            Role::Spill => self.spill = Some(fd),
            Role::Program | Role::Library => {
                self.files.insert((item.role, item.number), fd);
            }
            // Of a store that is dead: of no use to anybody.
            Role::Socket => {}
        }
    }
}
