// SPDX-License-Identifier: MIT OR Apache-2.0
//! A lane into a tier that gives none any more. A store that has pages must
//! serve whoever connects anew (the kernel, after a connection was lost): what
//! other tiers have is as good as before, what this one has leaves it first, by
//! the mover's lane, or is an error.

use std::sync::atomic::Ordering;

use super::error::{Kind, Result};
use super::store::{Role, Store};
use super::tier::{Done, Fault, Lane, LaneSetup, PageOp};

/// So many lanes in a row that a tier has no memory for mean that it failed.
const REFUSALS: u32 = 3;
/// What its operations fail with: EIO.
const LOST: Fault = Fault::Device(5);

struct LostLane {
    refused: Vec<Done>,
}

impl Lane for LostLane {
    fn submit(&mut self, ops: &[PageOp]) {
        self.refused.extend(ops.iter().map(|op| Done { tag: op.tag, result: Err(LOST) }));
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let room = (done.capacity() - done.len()).min(self.refused.len());
        done.extend(self.refused.drain(..room));
    }

    fn pending(&self) -> usize {
        self.refused.len()
    }

    fn needs_polling(&self) -> bool {
        true
    }
}

impl Store {
    /// A lane into a tier for a new session, and whether it is none: its
    /// operations fail. A device that cannot give one is an error while the store
    /// is empty; from then on it is one that failed. A lack of memory may pass, so
    /// the first times in a row it stays an error: whoever asks asks again.
    pub(super) fn lane(&self, tier: u8, setup: LaneSetup) -> Result<(Box<dyn Lane>, bool)> {
        let depth = setup.depth;
        let slots = &self.tiers[tier as usize];
        let error = match slots.tier().lane(setup) {
            Ok(lane) => {
                slots.refusals.store(0, Ordering::Relaxed);
                return Ok((lane, false));
            }
            Err(error) => error,
        };
        let has_pages = || self.tiers.iter().any(|slots| slots.count().used > 0);
        let is_failure = match error.kind() {
            Kind::Io | Kind::TimedOut | Kind::Checksum => true,
            Kind::NoSpace => slots.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= REFUSALS,
            _ => false,
        };
        let is_out = slots.is_faulty() && error.kind() == Kind::NoSpace;
        if slots.role() != Role::Fast
            || !(is_failure || is_out)
            || !(slots.is_faulty() || has_pages())
        {
            return Err(error);
        }
        self.fault(tier);
        self.call_keeper();
        Ok((Box::new(LostLane { refused: Vec::with_capacity(depth) }), true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tier::Direction;
    use crate::engine::units::SlabIndex;

    #[test]
    fn each_operation_fails_once_within_the_room_there_is() {
        let op = |tag| PageOp {
            tag,
            direction: Direction::Read,
            slab: SlabIndex(0),
            offset: 0,
            host: 0,
            bytes: 4096,
        };
        let mut lane = LostLane { refused: Vec::with_capacity(4) };
        lane.submit(&[op(7), op(8)]);
        lane.submit(&[op(9)]);
        let mut done = Vec::with_capacity(2);
        lane.poll(&mut done);
        assert_eq!(done, [7, 8].map(|tag| Done { tag, result: Err(LOST) }));
        assert_eq!(lane.pending(), 1);
        done.clear();
        lane.poll(&mut done);
        assert_eq!(done, [Done { tag: 9, result: Err(LOST) }]);
        assert_eq!(lane.pending(), 0);
    }
}
