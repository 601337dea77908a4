// SPDX-License-Identifier: MIT OR Apache-2.0
//! A part of the store served as a device of its own: several kernel devices
//! of equal priority share one store.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::io::{BlockIo, Command, Finished, Idle, Ticket};
use super::tier::HostMemory;

/// A byte range of another [`BlockIo`], starting at 0.
#[derive(Debug)]
pub struct Window<I> {
    inner: I,
    bytes: Range<u64>,
}

impl<I: BlockIo> Window<I> {
    /// Serves `bytes` of `inner`, which must hold them.
    pub fn new(inner: I, bytes: Range<u64>) -> Self {
        assert!(bytes.start <= bytes.end && bytes.end <= inner.device_bytes());
        Self { inner, bytes }
    }
}

impl<I: BlockIo> BlockIo for Window<I> {
    fn enter(&mut self) {
        self.inner.enter();
    }

    fn device_bytes(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }

    fn memory(&self) -> &Arc<dyn HostMemory> {
        self.inner.memory()
    }

    fn max_requests(&self) -> usize {
        self.inner.max_requests()
    }

    fn max_payload(&self) -> u32 {
        self.inner.max_payload()
    }

    fn reserve(&mut self, payload: u32) -> Option<Ticket> {
        self.inner.reserve(payload)
    }

    fn start(&mut self, token: u32, command: Command, offset: u64, bytes: u64) {
        let within = offset.checked_add(bytes).is_some_and(|end| end <= self.device_bytes());
        // An offset that no device has makes the inner one refuse the range.
        let offset = if within { self.bytes.start + offset } else { u64::MAX };
        self.inner.start(token, command, offset, bytes);
    }

    fn drive(&mut self, now: Duration, finished: &mut Vec<Finished>) {
        self.inner.drive(now, finished);
    }

    fn cancel(&mut self) {
        self.inner.cancel();
    }

    fn release(&mut self, token: u32) {
        self.inner.release(token);
    }

    fn idle(&self) -> Idle {
        self.inner.idle()
    }

    fn lose(self) {
        self.inner.lose();
    }
}
