// SPDX-License-Identifier: MIT OR Apache-2.0
//! What lanes see of a slab, without a lock.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use ash::vk::{self, Handle};

use super::channel::Target;
use super::memory::DeviceMemory;

/// A slab's place. It changes only while no operation on the slab is open.
#[derive(Debug, Default)]
pub struct Slab {
    base: AtomicPtr<u8>,
    address: AtomicU64,
    buffer: AtomicU64,
    /// Written last and cleared first.
    held: AtomicBool,
}

impl Slab {
    /// The slab is held from here on.
    pub fn show(&self, memory: &DeviceMemory) {
        self.base.store(memory.base(), Ordering::Relaxed);
        self.address.store(memory.address(), Ordering::Relaxed);
        self.buffer.store(memory.buffer().as_raw(), Ordering::Relaxed);
        self.held.store(true, Ordering::Release);
    }

    /// It is not held any more.
    pub fn hide(&self) {
        self.held.store(false, Ordering::Release);
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.held.load(Ordering::Acquire)
    }

    /// Where the CPU reaches it; null if it does not, or if it is not held.
    pub fn base(&self) -> *mut u8 {
        if self.is_held() { self.base.load(Ordering::Relaxed) } else { std::ptr::null_mut() }
    }

    /// How the device reaches it, if it does.
    pub fn target(&self) -> Option<Target> {
        let buffer = if self.is_held() { self.buffer.load(Ordering::Relaxed) } else { 0 };
        let address = self.address.load(Ordering::Relaxed);
        (buffer != 0).then(|| Target { buffer: vk::Buffer::from_raw(buffer), address })
    }
}
