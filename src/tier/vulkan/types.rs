// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which of a device's memory types slabs are made of, by what the types can do
//! and how much there is of them; a vendor or a model is never asked for. Pure.

use ash::vk;

use crate::engine::units::ByteLen;

/// Which buffer a slab of a type has, by which the device reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// One made for memory that is given out, as the interface asks.
    Shared,
    /// An ordinary one: a driver may give out memory of a type that it lets no
    /// buffer of the other kind take.
    Ordinary,
    /// None: only the CPU reaches it.
    Nothing,
}

/// A memory type and the heap behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryType {
    /// The driver's number of the type.
    pub index: u32,
    /// The driver's number of its heap.
    pub heap: u32,
    /// Bytes of the heap. Not all of them can be had: others use it too, and a
    /// driver may give out a part of a heap only by some of its types.
    pub bytes: ByteLen,
    /// The buffer of slabs of it.
    pub over: Over,
}

/// Which types buffers take, a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// Buffers for memory that is given out.
    pub shared: u32,
    /// Ordinary ones.
    pub ordinary: u32,
}

impl Takes {
    fn over(self, index: u32) -> Over {
        if self.shared & (1 << index) != 0 {
            Over::Shared
        } else if self.ordinary & (1 << index) != 0 {
            Over::Ordinary
        } else {
            Over::Nothing
        }
    }
}

/// What slabs are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    /// Device memory that the CPU can reach; used first.
    pub mapped: Option<MemoryType>,
    /// Device memory that only the device can reach, where there is such.
    pub plain: Option<MemoryType>,
}

impl Types {
    /// Bytes of all heaps behind the types, each counted once.
    pub fn total(&self) -> ByteLen {
        let plain = self.plain.filter(|plain| self.mapped.is_none_or(|m| m.heap != plain.heap));
        let bytes = |memory: Option<MemoryType>| memory.map_or(0, |memory| memory.bytes.0);
        ByteLen(bytes(self.mapped) + bytes(plain))
    }

    /// The types in the order in which they are used up.
    pub fn in_order(&self) -> impl Iterator<Item = (MemoryType, bool)> {
        let mapped = self.mapped.map(|memory| (memory, true));
        mapped.into_iter().chain(self.plain.map(|memory| (memory, false)))
    }
}

/// The CPU can reach it, and sees writes without being told to look.
const MAPPED: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// All that a type of ours may have beside what it must have. Others stand for
/// memory that is no ordinary one: protected, made when it is touched, uncached.
const ORDINARY: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    MAPPED.as_raw() | vk::MemoryPropertyFlags::HOST_CACHED.as_raw(),
);

/// The best types: of the largest heap, with the fewest properties beyond the
/// needed. What the CPU reaches needs no buffer, what it does not needs one; without
/// `mapping` the CPU is to reach nothing.
pub fn choose(memory: &vk::PhysicalDeviceMemoryProperties, takes: Takes, mapping: bool) -> Types {
    let best = |fits: &dyn Fn(vk::MemoryPropertyFlags, Over) -> bool| {
        memory
            .memory_types_as_slice()
            .iter()
            .zip(0_u32..)
            .filter(|(found, index)| {
                found.property_flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL)
                    && ORDINARY.contains(found.property_flags)
                    && fits(found.property_flags, takes.over(*index))
            })
            .map(|(found, index)| {
                let heap = found.heap_index;
                let bytes = ByteLen(memory.memory_heaps_as_slice()[heap as usize].size);
                let extra = found.property_flags.as_raw().count_ones();
                (MemoryType { index, heap, bytes, over: takes.over(index) }, extra)
            })
            .min_by_key(|(found, extra)| (std::cmp::Reverse(found.bytes), *extra, found.index))
            .map(|(found, _)| found)
    };
    let unmapped = |flags: vk::MemoryPropertyFlags| {
        !mapping || !flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE)
    };
    Types {
        mapped: best(&|flags, _| mapping && flags.contains(MAPPED)),
        plain: best(&|flags, over| over != Over::Nothing && unmapped(flags)),
    }
}

/// What the device has, for an error that says that it will not do.
pub fn describe(memory: &vk::PhysicalDeviceMemoryProperties, takes: Takes) -> String {
    let types = memory.memory_types_as_slice().iter().zip(0_u32..).map(|(found, index)| {
        let heap = &memory.memory_heaps_as_slice()[found.heap_index as usize];
        let (flags, size) = (found.property_flags, ByteLen(heap.size));
        format!("{index}: {flags:?} of heap {} ({size}, {:?})", found.heap_index, takes.over(index))
    });
    types.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::MemoryPropertyFlags as Flags;

    const GIB: u64 = 1 << 30;

    fn memory(heaps: &[u64], types: &[(Flags, u32)]) -> vk::PhysicalDeviceMemoryProperties {
        let mut memory = vk::PhysicalDeviceMemoryProperties {
            memory_type_count: types.len() as u32,
            memory_heap_count: heaps.len() as u32,
            ..Default::default()
        };
        for (n, size) in heaps.iter().enumerate() {
            memory.memory_heaps[n].size = *size;
        }
        for (n, (flags, heap)) in types.iter().enumerate() {
            memory.memory_types[n] = vk::MemoryType { property_flags: *flags, heap_index: *heap };
        }
        memory
    }

    const ALL: Takes = Takes { shared: u32::MAX, ordinary: u32::MAX };

    fn indices(types: Types) -> (Option<u32>, Option<u32>) {
        (types.mapped.map(|memory| memory.index), types.plain.map(|memory| memory.index))
    }

    #[test]
    fn one_heap_with_both_types_is_counted_once() {
        // A data centre card: all of it listed as mappable.
        let host = Flags::HOST_VISIBLE | Flags::HOST_COHERENT;
        let memory = memory(
            &[140 * GIB, 64 * GIB],
            &[
                (Flags::empty(), 1),
                (Flags::DEVICE_LOCAL, 0),
                (host, 1),
                (host | Flags::HOST_CACHED, 1),
                (MAPPED, 0),
            ],
        );
        let types = choose(&memory, ALL, true);
        assert_eq!(indices(types), (Some(4), Some(1)));
        assert_eq!(types.total(), ByteLen(140 * GIB));
        assert_eq!(indices(choose(&memory, ALL, false)), (None, Some(1)));
    }

    #[test]
    fn a_small_window_is_used_beside_the_rest_of_the_card() {
        let memory = memory(&[8 * GIB, GIB / 4], &[(Flags::DEVICE_LOCAL, 0), (MAPPED, 1)]);
        let types = choose(&memory, ALL, true);
        assert_eq!(indices(types), (Some(1), Some(0)));
        assert_eq!(types.total(), ByteLen(8 * GIB + GIB / 4));
        assert_eq!(types.in_order().map(|(_, mapped)| mapped).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn a_larger_heap_wins_over_a_smaller_and_a_plain_type_over_an_odd_one() {
        let uncached = Flags::DEVICE_COHERENT_AMD | Flags::DEVICE_UNCACHED_AMD;
        let memory = memory(
            &[GIB / 4, 16 * GIB],
            &[
                (MAPPED, 0),
                (MAPPED | uncached, 1),
                (MAPPED | Flags::HOST_CACHED, 1),
                (MAPPED, 1),
                (Flags::DEVICE_LOCAL | Flags::LAZILY_ALLOCATED, 1),
                (Flags::DEVICE_LOCAL | Flags::PROTECTED, 1),
            ],
        );
        assert_eq!(indices(choose(&memory, ALL, true)), (Some(3), None));
    }

    #[test]
    fn a_type_that_must_be_flushed_by_hand_is_no_mapped_type() {
        let memory = memory(&[GIB], &[(Flags::DEVICE_LOCAL | Flags::HOST_VISIBLE, 0)]);
        assert_eq!(indices(choose(&memory, ALL, true)), (None, None));
        assert_eq!(choose(&memory, ALL, true).total(), ByteLen(0));
    }

    #[test]
    fn what_the_cpu_reaches_needs_no_buffer_and_what_it_does_not_needs_one() {
        let memory = memory(&[GIB], &[(Flags::DEVICE_LOCAL, 0), (MAPPED, 0)]);
        let over = |shared, ordinary| {
            let types = choose(&memory, Takes { shared, ordinary }, true);
            (types.mapped.map(|memory| memory.over), types.plain.map(|memory| memory.over))
        };
        assert_eq!(over(0b11, 0b11), (Some(Over::Shared), Some(Over::Shared)));
        assert_eq!(over(0b01, 0b11), (Some(Over::Ordinary), Some(Over::Shared)));
        assert_eq!(over(0b01, 0b01), (Some(Over::Nothing), Some(Over::Shared)));
        assert_eq!(over(0b00, 0b00), (Some(Over::Nothing), None));
        let unmapped = choose(&memory, Takes { shared: 0b10, ordinary: 0 }, false);
        assert_eq!(indices(unmapped), (None, Some(1)));
        let text = describe(&memory, Takes { shared: 0b10, ordinary: 0 });
        assert!(text.starts_with("0: DEVICE_LOCAL of heap 0 (1 GiB, Nothing); 1: "), "{text}");
    }
}
