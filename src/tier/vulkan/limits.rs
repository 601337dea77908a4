// SPDX-License-Identifier: MIT OR Apache-2.0
//! Who moves an operation: the CPU, the device's copy queue, or its program. Pure:
//! measured times in, limits out.

use crate::engine::tier::Direction;
use crate::engine::units::PAGE_BYTES;

/// What moves an operation where there is a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The CPU, where it reaches the memory.
    Cpu,
    /// Copy commands.
    Copy,
    /// The program, for what is small.
    Gather,
}

/// Times of one direction, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The CPU moves one page.
    pub page: f64,
    /// The program moves one page, and a whole batch; `None`: there is none.
    pub gather: Option<(f64, f64)>,
    /// Pages of that batch.
    pub batch: u16,
    /// Copy commands move a small and a large piece in one.
    pub copy: (f64, f64),
    /// Pages of these.
    pub pieces: (f64, f64),
}

/// From where on the device is the faster way, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Pages of small operations in one group, for the program.
    pub gather: usize,
    /// Bytes of one operation, for the copy queue.
    pub copy: u32,
}

impl Limit {
    const NEVER: Self = Self { gather: usize::MAX, copy: u32::MAX };

    /// The least amounts for which the device is faster by these times.
    pub fn of(times: &Times) -> Self {
        // The device's time over pages is a line through two points.
        let line = |(low, high): (f64, f64), (from, to): (f64, f64), pages: f64| {
            low + (high - low) * (pages - from) / (to - from)
        };
        let cheaper = |pages: usize, device: f64| device < times.page * pages as f64;
        let gather = times.gather.and_then(|gather| {
            let batch = (1.0, f64::from(times.batch));
            (1..=usize::from(times.batch))
                .find(|pages| cheaper(*pages, line(gather, batch, *pages as f64)))
        });
        let copy =
            (1..=512).find(|pages| cheaper(*pages, line(times.copy, times.pieces, *pages as f64)));
        Self {
            gather: gather.unwrap_or(Self::NEVER.gather),
            copy: copy.map_or(Self::NEVER.copy, |pages| (pages * PAGE_BYTES) as u32),
        }
    }
}

/// The limits of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    read: Limit,
    write: Limit,
    /// Whether what the CPU cannot reach may be moved by the program.
    program: bool,
}

impl Limits {
    /// As measured.
    pub fn measured(read: &Times, write: &Times) -> Self {
        Self { read: Limit::of(read), write: Limit::of(write), program: true }
    }

    /// One way for all that it can do.
    pub fn only(by: By) -> Self {
        let limit = match by {
            By::Cpu => Limit::NEVER,
            By::Copy => Limit { copy: 0, ..Limit::NEVER },
            By::Gather => Limit { gather: 0, ..Limit::NEVER },
        };
        Self { read: limit, write: limit, program: by != By::Copy }
    }

    /// Who moves an operation of `bytes` in a group that has `pages` of small ones
    /// in its direction. `mapped`: the CPU reaches its slab; `small`: the program
    /// could move it.
    pub fn choose(
        &self,
        direction: Direction,
        bytes: u32,
        pages: usize,
        mapped: bool,
        small: bool,
    ) -> By {
        let limit = match direction {
            Direction::Read => self.read,
            Direction::Write => self.write,
        };
        if mapped {
            if small && pages >= limit.gather {
                return By::Gather;
            }
            return if bytes >= limit.copy { By::Copy } else { By::Cpu };
        }
        if small && self.program { By::Gather } else { By::Copy }
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (n, (name, limit)) in [("reads", self.read), ("writes", self.write)].iter().enumerate()
        {
            f.write_str(if n == 0 { "" } else { "; " })?;
            match limit.gather {
                usize::MAX => write!(f, "{name} by program never")?,
                pages => write!(f, "{name} by program from {pages} pages on")?,
            }
            match limit.copy {
                u32::MAX => write!(f, ", by copy queue never")?,
                bytes => write!(f, ", by copy queue from {} KiB on", bytes >> 10)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As on an H200.
    const READ: Times = Times {
        page: 5500.0,
        gather: Some((10_700.0, 13_200.0)),
        batch: 32,
        copy: (14_000.0, 26_000.0),
        pieces: (16.0, 256.0),
    };
    const WRITE: Times = Times { page: 700.0, ..READ };

    #[test]
    fn the_limits_are_where_the_lines_cross() {
        assert_eq!(Limit::of(&READ), Limit { gather: 2, copy: 3 * 4096 });
        let write = Limit::of(&WRITE);
        // 17 pages by the CPU take 11.9 us, by the program 12.0; by copy 14.1.
        assert_eq!(write, Limit { gather: 18, copy: 21 * 4096 });
        assert_eq!(Limit::of(&Times { page: 1.0, ..READ }), Limit::NEVER);
        assert_eq!(Limit::of(&Times { gather: None, ..READ }).gather, usize::MAX);
        // A line that falls, as noise makes it, has an end too.
        let noise = Times { copy: (26_000.0, 14_000.0), ..WRITE };
        assert!(Limit::of(&noise).copy > 0);
    }

    #[test]
    fn what_the_cpu_cannot_reach_is_the_devices() {
        let limits = Limits::measured(&READ, &WRITE);
        let read = Direction::Read;
        assert_eq!(limits.choose(read, 4096, 1, true, true), By::Cpu);
        assert_eq!(limits.choose(read, 4096, 2, true, true), By::Gather);
        assert_eq!(limits.choose(read, 1 << 20, 1, true, false), By::Copy);
        assert_eq!(limits.choose(Direction::Write, 4096, 17, true, true), By::Cpu);
        for (bytes, small, by) in [(4096, true, By::Gather), (1 << 20, false, By::Copy)] {
            assert_eq!(limits.choose(read, bytes, 1, false, small), by);
            assert_eq!(Limits::only(By::Cpu).choose(read, bytes, 1, false, small), by);
            assert_eq!(Limits::only(By::Copy).choose(read, bytes, 1, false, small), By::Copy);
        }
        let text = limits.to_string();
        assert!(text.contains("reads by program from 2 pages on"), "{text}");
    }
}
