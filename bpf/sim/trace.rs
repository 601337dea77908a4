// SPDX-License-Identifier: GPL-2.0-only
//! The trace format of `/dev/sluice_sim` (`kernel-module/include/sluice_sim.h`),
//! and what generators of traces share.

/// Pages of a block.
pub const BLOCK_PAGES: u64 = 512;

/// What a record says, by `enum sluice_sim_kind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// The GPU: chunks, bytes per second, number.
    Config = 1,
    /// An owner: process, cgroup, class.
    Tenant = 2,
    /// Address space that may be touched.
    Alloc = 3,
    /// Address space that is given up.
    Free = 4,
    /// Pages that the GPU touches.
    Access = 5,
    /// Pages that the processor takes back.
    Take = 6,
    /// A group of channels is made.
    Task = 7,
    /// It is scheduled for the first time.
    Bind = 8,
    /// It asks for a timeslice.
    Timeslice = 9,
    /// It has work to do.
    Submit = 10,
    /// It goes.
    Destroy = 11,
    /// Time passes.
    Tick = 12,
}

/// A tenant's class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Class {
    /// As most are.
    Normal = 0,
    /// Must not suffer from others.
    Guaranteed = 1,
    /// Takes what is left.
    Preemptible = 2,
}

/// One record, 32 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    time_ns: u64,
    kind: Kind,
    tenant: u16,
    a: u32,
    b: u64,
    c: u64,
}

impl Record {
    fn bytes(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&self.time_ns.to_le_bytes());
        bytes[8..10].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[10..12].copy_from_slice(&self.tenant.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.a.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.b.to_le_bytes());
        bytes[24..].copy_from_slice(&self.c.to_le_bytes());
        bytes
    }
}

/// A trace being written. Its clock goes forward by [`Trace::wait`] only.
#[derive(Debug, Default)]
pub struct Trace {
    records: Vec<Record>,
    now_ns: u64,
    cgroups: Vec<(u16, u64)>,
}

impl Trace {
    /// A trace for a GPU of that many chunks. Tenants are in the cgroups given
    /// (tenant, cgroup id), else in the writer's.
    pub fn new(gpu: u32, chunks: u32, cgroups: &[(u16, u64)]) -> Self {
        Self::on(gpu, chunks, 0, cgroups)
    }

    /// As [`Trace::new`], with a link of that many bytes per second; 0: the usual one.
    pub fn on(gpu: u32, chunks: u32, link_bytes_per_s: u64, cgroups: &[(u16, u64)]) -> Self {
        let mut trace = Self { cgroups: cgroups.to_vec(), ..Self::default() };
        trace.push(Kind::Config, 0, chunks, link_bytes_per_s, u64::from(gpu));
        trace
    }

    /// How many records it has.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Its clock.
    pub fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn push(&mut self, kind: Kind, tenant: u16, a: u32, b: u64, c: u64) {
        self.records.push(Record { time_ns: self.now_ns, kind, tenant, a, b, c });
    }

    /// Adds an owner with that many blocks of address space, from block 0 on.
    pub fn tenant(&mut self, tenant: u16, class: Class, blocks: u64) {
        self.owner(tenant, 1000 + u32::from(tenant), class);
        if blocks > 0 {
            self.push(Kind::Alloc, tenant, (blocks * BLOCK_PAGES) as u32, 0, 0);
        }
    }

    /// Adds an owner that has no memory yet.
    pub fn owner(&mut self, tenant: u16, process: u32, class: Class) {
        let cgroup = self.cgroups.iter().find(|(of, _)| *of == tenant).map_or(0, |(_, id)| *id);
        self.push(Kind::Tenant, tenant, process, cgroup, class as u64);
    }

    /// Something happens to pages: [`Kind::Alloc`], `Free`, `Access` or `Take`.
    pub fn memory(&mut self, kind: Kind, tenant: u16, first: u64, pages: u64, writes: bool) {
        self.push(kind, tenant, pages as u32, first, u64::from(writes));
    }

    /// Something happens to a task; `value` is what its kind has beside the task's name.
    pub fn task_event(&mut self, kind: Kind, tenant: u16, tsg: u32, runlist: u64, value: u64) {
        self.push(kind, tenant, tsg, runlist, value);
    }

    /// Lets time pass until that moment, which is not before now.
    pub fn wait_until(&mut self, at_ns: u64) {
        self.now_ns = at_ns;
    }

    /// Lets time pass.
    pub fn wait(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// The GPU touches pages; with the accesses of the same time these are concurrent.
    pub fn access(&mut self, tenant: u16, first: u64, pages: u64, writes: bool) {
        self.push(Kind::Access, tenant, pages as u32, first, u64::from(writes));
    }

    /// The processor takes pages back.
    pub fn take(&mut self, tenant: u16, first: u64, pages: u64) {
        self.push(Kind::Take, tenant, pages as u32, first, 0);
    }

    /// A task is made and scheduled.
    pub fn task(&mut self, tenant: u16, tsg: u32, runlist: u64) {
        self.push(Kind::Task, tenant, tsg, runlist, 0);
        self.push(Kind::Bind, tenant, tsg, runlist, 0);
    }

    /// A task asks for a timeslice.
    pub fn timeslice(&mut self, tenant: u16, tsg: u32, runlist: u64, us: u64) {
        self.push(Kind::Timeslice, tenant, tsg, runlist, us);
    }

    /// A task has work.
    pub fn submit(&mut self, tenant: u16, tsg: u32, runlist: u64, ns: u64) {
        self.push(Kind::Submit, tenant, tsg, runlist, ns);
    }

    /// A task goes.
    pub fn destroy(&mut self, tenant: u16, tsg: u32, runlist: u64) {
        self.push(Kind::Destroy, tenant, tsg, runlist, 0);
    }

    /// Lets the simulation come to this moment.
    pub fn tick(&mut self) {
        self.push(Kind::Tick, 0, 0, 0, 0);
    }

    /// Its records, as they are written.
    pub fn bytes(&self) -> Vec<u8> {
        self.records.iter().flat_map(Record::bytes).collect()
    }
}

/// Random numbers that are the same everywhere for the same seed (`SplitMix64`).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below that one.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of a modulus is far below what a trace could show.
        self.next() % end
    }
}

/// Picks ranks 0.. with a probability proportional to 1/(rank + 1).
#[derive(Clone, Debug)]
pub struct Zipf {
    /// Sums of the weights 2^32/(rank + 1).
    sums: Vec<u64>,
}

impl Zipf {
    /// Over that many ranks.
    pub fn new(ranks: u64) -> Self {
        let sums = (1..=ranks)
            .scan(0, |sum, rank| {
                *sum += (1 << 32) / rank;
                Some(*sum)
            })
            .collect();
        Self { sums }
    }

    /// A rank.
    pub fn pick(&self, random: &mut Random) -> u64 {
        let point = random.below(*self.sums.last().expect("at least one rank"));
        self.sums.partition_point(|sum| *sum <= point) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_layout_of_the_header() {
        let mut trace = Trace::new(3, 7, &[]);
        trace.wait(0x0102);
        trace.access(5, 0x0a0b, 9, true);
        let bytes = trace.bytes();
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[8..16], [1, 0, 0, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[24], 3);
        assert_eq!(bytes[32..48], [2, 1, 0, 0, 0, 0, 0, 0, 5, 0, 5, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[48..64], [0x0b, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn the_first_ranks_are_picked_most() {
        let zipf = Zipf::new(100);
        let mut random = Random::new(1);
        let mut counts = [0u32; 100];
        for _ in 0..10_000 {
            counts[zipf.pick(&mut random) as usize] += 1;
        }
        assert!(counts[0] > 4 * counts[9] && counts[9] > 4 * counts[99], "{counts:?}");
    }
}
