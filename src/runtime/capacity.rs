// SPDX-License-Identifier: MIT OR Apache-2.0
//! How large a store without a spill can be: all of it is held in the fast
//! tiers before the first page, so that a write never fails for lack of room.

use crate::config::check::STEP;
use crate::config::schema::spelled;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::{ByteLen, SLAB_BYTES};

/// What one fast tier could hold at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The tier's name.
    pub tier: String,
    /// Slabs it can ever hold.
    pub max_slabs: u32,
    /// Bytes that anybody could take of it; `None`: it shares with nobody.
    pub free: Option<u64>,
    /// Bytes of these that are left alone: the reserve, and what is needed to work.
    pub kept: u64,
}

impl Room {
    /// Slabs that it can hold above what is kept.
    #[must_use]
    pub fn slabs(&self) -> u32 {
        let fit = |free: u64| free.saturating_sub(self.kept) / SLAB_BYTES as u64;
        self.free.map_or(self.max_slabs, |free| fit(free).min(u64::from(self.max_slabs)) as u32)
    }
}

/// Slabs that hold `size` bytes.
fn slabs_of(size: ByteLen) -> u64 {
    size.0.div_ceil(SLAB_BYTES as u64)
}

fn bytes_of(slabs: u64) -> ByteLen {
    ByteLen(slabs * SLAB_BYTES as u64)
}

/// The largest size that fits: `size`, or in steps down to `min_size`.
///
/// Errors: `NoSpace`, with the arithmetic of each tier.
pub fn fit(size: ByteLen, min_size: Option<ByteLen>, rooms: &[Room]) -> Result<ByteLen> {
    let have: u64 = rooms.iter().map(|room| u64::from(room.slabs())).sum();
    let least = min_size.unwrap_or(size);
    let mut tried = size;
    while slabs_of(tried) > have && tried > least {
        tried = step_down(tried, least);
    }
    if slabs_of(tried) <= have {
        return Ok(tried);
    }
    let each: Vec<String> = rooms.iter().map(arithmetic).collect();
    let asked = match min_size {
        Some(least) => format!("{size} or at least {least}"),
        None => size.to_string(),
    };
    let hint = match min_size {
        Some(_) => {
            "make swap.min_size smaller, free memory, or give the store a [spill]".to_owned()
        }
        None if have > 0 => format!(
            "make the size smaller (\"{}\" fits now), free memory, or give the store a [spill]",
            spelled(bytes_of(have))
        ),
        None => "free memory, or give the store a [spill]".to_owned(),
    };
    Err(Error::new(
        Kind::NoSpace,
        format!("{asked} of swap cannot be held: {} can; {}", bytes_of(have), each.join("; ")),
    )
    .with_hint(hint))
}

/// The next size to try, not below `least`.
#[must_use]
pub fn step_down(size: ByteLen, least: ByteLen) -> ByteLen {
    ByteLen(size.0.saturating_sub(STEP.0)).max(least)
}

fn arithmetic(room: &Room) -> String {
    let Room { tier, max_slabs, free, kept } = room;
    let most = bytes_of(u64::from(*max_slabs));
    match free {
        Some(free) => format!(
            "{tier} has {} free, of which {} are kept for others and work, and holds {most} at most",
            ByteLen(*free),
            ByteLen(*kept)
        ),
        None => format!("{tier} holds {most} at most"),
    }
}

/// How `slabs` are spread over the tiers, the first filled first. The caller
/// made sure that they fit.
#[must_use]
pub fn spread(mut slabs: u32, rooms: &[Room]) -> Vec<u32> {
    rooms
        .iter()
        .map(|room| {
            let here = slabs.min(room.slabs());
            slabs -= here;
            here
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GIB: u64 = 1 << 30;

    fn room(free_gib: u64, kept_gib: u64) -> Room {
        let (free, kept) = (Some(free_gib * GIB), kept_gib * GIB);
        Room { tier: "cuda:0".into(), max_slabs: 10_000, free, kept }
    }

    fn gib(n: u64) -> ByteLen {
        ByteLen(n * GIB)
    }

    #[test]
    fn the_whole_size_is_taken_where_it_fits() {
        assert_eq!(fit(gib(8), Some(gib(4)), &[room(9, 1)]).unwrap(), gib(8));
        assert_eq!(fit(gib(8), None, &[room(8, 0)]).unwrap(), gib(8));
    }

    #[test]
    fn the_size_falls_by_steps_of_512_mib_to_what_fits() {
        assert_eq!(fit(gib(8), Some(gib(4)), &[room(7, 1)]).unwrap(), gib(6));
        let odd = ByteLen(8 * GIB + (2 << 20));
        assert_eq!(fit(odd, Some(gib(4)), &[room(7, 0)]).unwrap(), ByteLen(odd.0 - 3 * STEP.0));
        // The last step is shorter: the least itself.
        assert_eq!(fit(odd, Some(gib(4)), &[room(4, 0)]).unwrap(), gib(4));
    }

    #[test]
    fn below_the_least_is_a_refusal_with_the_arithmetic() {
        let error = fit(gib(8), Some(gib(4)), &[room(4, 1)]).unwrap_err();
        assert_eq!(error.kind(), Kind::NoSpace);
        assert_eq!(
            error.to_string(),
            "8 GiB or at least 4 GiB of swap cannot be held: 3 GiB can; cuda:0 has 4 GiB free, \
             of which 1 GiB are kept for others and work, and holds 625 GiB at most"
        );
        let error = fit(gib(8), None, &[room(4, 1)]).unwrap_err();
        assert!(error.hint().unwrap().contains("\"3G\" fits now"), "{:?}", error.hint());
    }

    #[test]
    fn several_tiers_are_filled_in_their_order() {
        let rooms = [room(2, 1), room(8, 0)];
        assert_eq!(fit(gib(9), None, &rooms).unwrap(), gib(9));
        assert_eq!(spread(100, &rooms), [16, 84]);
        assert_eq!(spread(10, &rooms), [10, 0]);
    }

    proptest! {
        #[test]
        fn what_fits_is_held_and_lies_between_the_bounds(
            size in 2_u64..4096, least in 1_u64..64, free in 0_u64..(1 << 42), kept in 0_u64..(1 << 40)
        ) {
            let (size, least) = (ByteLen(size * STEP.0), ByteLen(least * STEP.0));
            prop_assume!(least < size);
            let rooms = [Room { tier: "a".into(), max_slabs: 1 << 20, free: Some(free), kept }];
            match fit(size, Some(least), &rooms) {
                Ok(got) => {
                    prop_assert!(least <= got && got <= size);
                    let held = got.0.div_ceil(SLAB_BYTES as u64) * SLAB_BYTES as u64;
                    prop_assert!(held + kept <= free);
                    // One step more would not have fitted.
                    let more = (got.0 + STEP.0).div_ceil(SLAB_BYTES as u64) * SLAB_BYTES as u64;
                    prop_assert!(got == size || more + kept > free);
                }
                Err(_) => prop_assert!(least.0 + kept > free),
            }
        }
    }
}
