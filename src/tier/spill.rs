// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slabs on a partition, a logical volume or a fully written file, by direct
//! I/O: nothing passes the page cache, so writing out never needs memory.
//!
//! The first 2 MiB are a header that says the space is ours; slabs follow. A
//! few workers, made at start and shared by all lanes, do the blocking reads
//! and writes and ring the lane's waker.

mod backing;
mod create;
mod extents;
mod filesystem;
mod signature;
mod space;

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::{
    Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake,
};
use crate::engine::units::{ByteLen, EXTENT_BYTES, SLAB_BYTES, SlabIndex};
pub use space::Finding;

/// Bytes before the first slab.
pub const HEADER_BYTES: u64 = EXTENT_BYTES as u64;

/// What the names of worker threads begin with.
pub const WORKER_NAME: &str = "sluice-spill-";
/// Stack of a worker; all of it is locked in an armed store.
const WORKER_STACK: usize = 256 << 10;

/// The tier; see the module.
pub struct SpillTier {
    file: Arc<File>,
    slabs: u32,
    shared: Arc<Shared>,
    workers: Vec<std::thread::JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
}

struct Queue {
    ring: Vec<Option<Job>>,
    first: usize,
    len: usize,
    closed: bool,
}

struct Job {
    op: PageOp,
    lane: Arc<LaneShared>,
}

/// What a worker needs of the lane an operation came from.
struct LaneShared {
    memory: Arc<dyn HostMemory>,
    waker: Arc<dyn Wake>,
    done: Mutex<Vec<Done>>,
}

/// Looks at everything that [`SpillTier::open`] looks at, and changes nothing;
/// with `swap`, also whether that much swap may stand on it.
pub fn check(path: &Path, swap: Option<ByteLen>) -> Vec<Finding> {
    space::check(path, swap)
}

/// Makes a spill file for `swap` bytes of swap, every block of it written;
/// `progress` is told the bytes written and all. Gives the file's size.
///
/// The name appears when the file is complete; a failure leaves nothing.
/// Errors: `Busy` if the name is taken, `NoSpace` with the figures, `Invalid`
/// for a filesystem that can hold no spill.
pub fn create(
    path: &Path,
    swap: ByteLen,
    progress: &mut dyn FnMut(ByteLen, ByteLen),
) -> Result<ByteLen> {
    create::create(path, swap, progress)
}

/// How a worker thread is prepared before it serves (scheduling, stack).
pub type Prepare = Arc<dyn Fn() + Send + Sync>;

impl SpillTier {
    /// Opens `path` and starts `workers` threads, each running `prepare` first.
    ///
    /// A block device is opened exclusively (mounted, used as swap or by
    /// another store: `Busy`). A file must lie on a filesystem that lets its
    /// blocks stay where they are, with every block allocated and written.
    /// Space that holds something else than ours or zeros is refused.
    pub fn open(path: &Path, workers: usize, prepare: &Prepare) -> Result<Self> {
        let (file, slabs) = space::open(path)?;
        Self::serve(file, slabs, path, workers, prepare)
    }

    /// The same on a descriptor of [`Tier::export`], whose claim goes on: nobody
    /// could get at the space in between. `path` is only a name here.
    pub fn adopt(memory: OwnedFd, path: &Path, workers: usize, prepare: &Prepare) -> Result<Self> {
        let file = File::from(memory);
        let slabs = space::adopt(&file, path)?;
        Self::serve(file, slabs, path, workers, prepare)
    }

    fn serve(
        file: File,
        slabs: u32,
        path: &Path,
        workers: usize,
        prepare: &Prepare,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { ring: Vec::new(), first: 0, len: 0, closed: false }),
            work: Condvar::new(),
        });
        let file = Arc::new(file);
        let workers = (0..workers)
            .map(|n| {
                let (file, shared, prepare) =
                    (Arc::clone(&file), Arc::clone(&shared), Arc::clone(prepare));
                std::thread::Builder::new()
                    .name(format!("{WORKER_NAME}{n}"))
                    .stack_size(WORKER_STACK)
                    .spawn(move || {
                        prepare();
                        work(&file, &shared);
                    })
                    .map_err(|cause| space::io_error(path, "start a worker for", cause))
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { file, slabs, shared, workers })
    }
}

impl Drop for SpillTier {
    fn drop(&mut self) {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Tier for SpillTier {
    fn name(&self) -> &'static str {
        "spill"
    }

    fn max_slabs(&self) -> u32 {
        self.slabs
    }

    /// The space is there from the start; nothing to do.
    fn take(&self, _slab: SlabIndex) -> Result<()> {
        Ok(())
    }

    fn release(&self, _slab: SlabIndex) -> Result<()> {
        Ok(())
    }

    /// The descriptor of the whole spill: a disk keeps its contents by itself.
    fn export(&self, slab: SlabIndex) -> Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from).map_err(|cause| {
            Error::new(Kind::Io, format!("spill slab {}: descriptor", slab.0)).with_source(cause)
        })
    }

    /// Accepts only the file or device that the tier has open.
    fn import(&self, slab: SlabIndex, memory: OwnedFd) -> Result<()> {
        use std::os::unix::fs::MetadataExt;
        let identity = |file: &File| file.metadata().map(|m| (m.dev(), m.ino(), m.rdev())).ok();
        let theirs = identity(&File::from(memory));
        if theirs.is_none() || theirs != identity(&self.file) {
            return Err(Error::new(
                Kind::Invalid,
                format!("spill slab {}: the descriptor is of another file", slab.0),
            ));
        }
        Ok(())
    }

    fn lane(&self, setup: LaneSetup) -> Result<Box<dyn Lane>> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner).make_room(setup.depth);
        Ok(Box::new(SpillLane {
            shared: Arc::clone(&self.shared),
            mine: Arc::new(LaneShared {
                memory: setup.memory,
                waker: setup.waker,
                done: Mutex::new(Vec::with_capacity(setup.depth)),
            }),
            pending: 0,
        }))
    }
}

struct SpillLane {
    shared: Arc<Shared>,
    mine: Arc<LaneShared>,
    pending: usize,
}

impl Lane for SpillLane {
    fn submit(&mut self, ops: &[PageOp]) {
        if ops.is_empty() {
            return;
        }
        let mut queue = self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        for op in ops {
            self.pending += 1;
            queue.push(Job { op: *op, lane: Arc::clone(&self.mine) });
        }
        drop(queue);
        if ops.len() == 1 {
            self.shared.work.notify_one();
        } else {
            self.shared.work.notify_all();
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let mut mine = self.mine.done.lock().unwrap_or_else(PoisonError::into_inner);
        let room = (done.capacity() - done.len()).min(mine.len());
        self.pending -= room;
        done.extend(mine.drain(..room));
    }

    fn pending(&self) -> usize {
        self.pending
    }

    fn needs_polling(&self) -> bool {
        false
    }
}

impl Queue {
    /// Room for the operations of one more lane.
    fn make_room(&mut self, depth: usize) {
        self.ring.rotate_left(self.first);
        self.first = 0;
        self.ring.extend((0..depth).map(|_| None));
    }

    fn push(&mut self, job: Job) {
        assert!(self.len < self.ring.len(), "a lane submitted more than its depth");
        let at = (self.first + self.len) % self.ring.len();
        self.ring[at] = Some(job);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<Job> {
        if self.len == 0 {
            return None;
        }
        let job = self.ring[self.first].take();
        self.first = (self.first + 1) % self.ring.len();
        self.len -= 1;
        job
    }
}

/// A worker's life.
fn work(file: &File, shared: &Shared) {
    let mut queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(job) = queue.pop() {
            drop(queue);
            // A worker that is gone would leave its operation unreported for ever.
            let result = catch_unwind(AssertUnwindSafe(|| transfer(file, &job)))
                .unwrap_or(Err(Fault::Device(libc::EIO)));
            let done = Done { tag: job.op.tag, result };
            job.lane.done.lock().unwrap_or_else(PoisonError::into_inner).push(done);
            job.lane.waker.wake();
            queue = shared.queue.lock().unwrap_or_else(PoisonError::into_inner);
        } else if queue.closed {
            return;
        } else {
            queue = shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn transfer(file: &File, job: &Job) -> std::result::Result<(), Fault> {
    let op = &job.op;
    let bytes = op.bytes as usize;
    let memory = &job.lane.memory;
    assert!(op.host as usize + bytes <= memory.bytes());
    let start = HEADER_BYTES + u64::from(op.slab.0) * SLAB_BYTES as u64 + u64::from(op.offset);
    let mut moved = 0;
    while moved < bytes {
        // SAFETY: inside the host memory (asserted above); the range belongs
        // to this operation until its `Done` is pushed.
        let at = unsafe { memory.base().add(op.host as usize + moved) }.cast();
        let (left, offset) = (bytes - moved, (start + moved as u64) as libc::off_t);
        // SAFETY: `at` is valid for `left` bytes, as above; `file` is open.
        let n = unsafe {
            match op.direction {
                Direction::Read => libc::pread(file.as_raw_fd(), at, left, offset),
                Direction::Write => libc::pwrite(file.as_raw_fd(), at, left, offset),
            }
        };
        match n {
            0 => return Err(Fault::Device(libc::EIO)),
            n if n > 0 => moved += n.cast_unsigned(),
            _ => match std::io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                errno => return Err(Fault::Device(errno.unwrap_or(libc::EIO))),
            },
        }
    }
    Ok(())
}
