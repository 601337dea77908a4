// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether the machine has cores to spare.

use std::time::Duration;

/// How long an answer holds.
const HOLDS: Duration = Duration::from_millis(100);
/// What the kernel multiplies a load average with (`SI_LOAD_SHIFT`).
const LOAD_UNIT: u64 = 1 << 16;

/// Asks the kernel now and then, without a file or an allocation.
#[derive(Debug)]
pub(super) struct Room {
    cpus: u64,
    asked: Option<Duration>,
    is_there: bool,
}

impl Room {
    pub fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        Self { cpus, asked: None, is_there: false }
    }

    /// Whether less than half of the cores were busy during the last minute,
    /// whoever looks for work included.
    pub fn is_there(&mut self, now: Duration) -> bool {
        if self.asked.is_none_or(|asked| now.saturating_sub(asked) >= HOLDS) {
            self.asked = Some(now);
            self.is_there = has_room(rustix::system::sysinfo().loads[0], self.cpus);
        }
        self.is_there
    }
}

/// `load` in units of a [`LOAD_UNIT`]th of a core.
fn has_room(load: u64, cpus: u64) -> bool {
    load * 2 < cpus * LOAD_UNIT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_cores_must_be_free() {
        for (load, cpus, room) in [
            (0, 1, true),
            (LOAD_UNIT, 2, false),
            (LOAD_UNIT - 1, 2, true),
            (LOAD_UNIT * 3, 16, true),
            (LOAD_UNIT * 9, 16, false),
        ] {
            assert_eq!(has_room(load, cpus), room, "{load} of {cpus}");
        }
    }

    #[test]
    fn an_answer_holds_for_a_while() {
        let mut room = Room::new();
        let first = room.is_there(HOLDS);
        room.is_there = !first;
        assert_eq!(room.is_there(HOLDS + HOLDS / 2), !first);
        assert_eq!(room.asked, Some(HOLDS));
        room.is_there(HOLDS * 3);
        assert_eq!(room.asked, Some(HOLDS * 3));
    }
}
