// SPDX-License-Identifier: MIT OR Apache-2.0
//! Slabs on a partition, a logical volume or a fully written file, by direct
//! I/O: nothing passes the page cache, so writing out never needs memory.
//!
//! The first 2 MiB are a header that says the space is ours; slabs follow. A
//! few workers, made at start and shared by all lanes, do the blocking reads
//! and writes and ring the lane's waker.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::engine::error::{Error, Kind, Result};
use crate::engine::tier::{
    Direction, Done, Fault, HostMemory, Lane, LaneSetup, PageOp, Tier, Wake,
};
use crate::engine::units::{ByteLen, EXTENT_BYTES, PAGE_BYTES, SLAB_BYTES, SlabIndex};

/// Bytes before the first slab.
pub const HEADER_BYTES: u64 = EXTENT_BYTES as u64;
/// What our header page begins with.
const MAGIC: &[u8; 16] = b"SLUICE-SPILL-1\n\0";

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
        let file = open_direct(path)?;
        let kind = file.metadata().map_err(|cause| io_error(path, "stat", cause))?.file_type();
        let bytes = if kind.is_block_device() {
            block_device_bytes(&file, path)?
        } else if kind.is_file() {
            check_filesystem(&file, path)?;
            lock_file(&file, path)?;
            let bytes = file.metadata().map_err(|cause| io_error(path, "stat", cause))?.len();
            check_extents(&file, path, bytes)?;
            bytes
        } else {
            return Err(not_a_store(path));
        };
        let slabs = bytes.saturating_sub(HEADER_BYTES) / SLAB_BYTES as u64;
        if slabs == 0 {
            let least = ByteLen(HEADER_BYTES + SLAB_BYTES as u64);
            return Err(Error::new(
                Kind::NoSpace,
                format!("spill {}: {} is less than {least}", path.display(), ByteLen(bytes)),
            ));
        }
        claim(&file, path)?;
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
                    .name(format!("sluice-spill-{n}"))
                    .spawn(move || {
                        prepare();
                        work(&file, &shared);
                    })
                    .map_err(|cause| io_error(path, "start a worker for", cause))
            })
            .collect::<Result<Vec<_>>>()?;
        let slabs = u32::try_from(slabs).unwrap_or(u32::MAX / 64);
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
            let result = transfer(file, &job);
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

fn io_error(path: &Path, what: &str, cause: std::io::Error) -> Error {
    let kind = match cause.raw_os_error() {
        Some(libc::ENOENT) => Kind::Missing,
        Some(libc::EACCES | libc::EPERM) => Kind::Denied,
        Some(libc::EBUSY | libc::ETXTBSY) => Kind::Busy,
        _ => Kind::Io,
    };
    Error::new(kind, format!("spill {}: cannot {what} it", path.display())).with_source(cause)
}

fn not_a_store(path: &Path) -> Error {
    let what = format!("spill {}: neither a block device nor a file", path.display());
    Error::new(Kind::Invalid, what).with_hint("name a partition, a logical volume or a file")
}

fn open_direct(path: &Path) -> Result<File> {
    let kind = std::fs::metadata(path).map_err(|cause| io_error(path, "open", cause))?.file_type();
    let is_block = kind.is_block_device();
    if !is_block && !kind.is_file() {
        return Err(not_a_store(path));
    }
    // O_EXCL without O_CREAT: on a block device, refuse one that is in use.
    let exclusive = if is_block { libc::O_EXCL } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT | libc::O_CLOEXEC | exclusive)
        .open(path)
        .map_err(|cause| match cause.raw_os_error() {
            Some(libc::EBUSY | libc::ETXTBSY) => io_error(path, "open", cause).with_hint(
                "it is mounted, used as swap, or held by another store; name a free partition",
            ),
            Some(libc::EINVAL) => io_error(path, "open", cause)
                .with_hint("its filesystem has no direct I/O; use a partition, ext4 or xfs"),
            _ => io_error(path, "open", cause),
        })
}

fn block_device_bytes(file: &File, path: &Path) -> Result<u64> {
    // BLKGETSIZE64, linux/fs.h: _IOR(0x12, 114, size_t).
    const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
    let mut bytes = 0u64;
    // SAFETY: the ioctl stores one u64 where the pointer says.
    if unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut bytes) } != 0 {
        return Err(io_error(path, "size", std::io::Error::last_os_error()));
    }
    Ok(bytes)
}

/// Refuses filesystems whose files move, live in memory, or live elsewhere.
fn check_filesystem(file: &File, path: &Path) -> Result<()> {
    let mut facts = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: fstatfs fills the structure when it returns 0.
    let facts = unsafe {
        if libc::fstatfs(file.as_raw_fd(), facts.as_mut_ptr()) != 0 {
            return Err(io_error(path, "stat the filesystem of", std::io::Error::last_os_error()));
        }
        facts.assume_init()
    };
    let why = match facts.f_type {
        // linux/magic.h; ZFS and the cluster filesystems from their own sources.
        0x0102_1994 => "tmpfs keeps it in the memory that is to be relieved",
        0x8584_58f6 => "ramfs keeps it in the memory that is to be relieved",
        0x9123_683e => "btrfs moves blocks when they are written",
        0x2fc1_2fc1 => "zfs moves blocks when they are written",
        0xca45_1a4e => "bcachefs moves blocks when they are written",
        0x794c_7630 => "overlayfs copies it when it is written",
        0x6969 => "nfs needs memory and a network to write it",
        0xff53_4d42 | 0xfe53_4d42 => "cifs needs memory and a network to write it",
        0x0102_1997 => "9p needs memory and a peer to write it",
        0x6573_5546 => "fuse needs another process to write it",
        _ => return Ok(()),
    };
    Err(Error::new(Kind::Invalid, format!("spill {}: {why}", path.display()))
        .with_hint("use a partition, a logical volume, or a file on ext4 or xfs"))
}

fn lock_file(file: &File, path: &Path) -> Result<()> {
    // SAFETY: a plain system call on our own descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        return Err(Error::new(
            Kind::Busy,
            format!("spill {}: another process holds its lock", path.display()),
        )
        .with_source(std::io::Error::last_os_error())
        .with_hint("stop the other store, or name another file"));
    }
    Ok(())
}

/// Every block must be allocated, written and ours alone: a write must never
/// make the filesystem allocate. Reads the extent map (FIEMAP).
fn check_extents(file: &File, path: &Path, bytes: u64) -> Result<()> {
    // linux/fiemap.h: a request of 32 bytes, then 56 bytes per extent.
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    const EXTENTS: usize = 64;
    // UNKNOWN, DELALLOC, ENCODED, DATA_INLINE, DATA_TAIL, UNWRITTEN, SHARED.
    const UNFIT: u32 = 0x2 | 0x4 | 0x8 | 0x200 | 0x400 | 0x800 | 0x2000;
    const LAST: u32 = 0x1;
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))?;
    let refuse = |at: u64, what: &str| {
        Error::new(Kind::Invalid, format!("spill {}: byte {at} is {what}", path.display()))
            .with_hint(format!(
                "write every block: dd if=/dev/zero of={} bs=1M count={} conv=fsync",
                path.display(),
                bytes >> 20
            ))
    };
    let mut map = [0u64; 4 + 7 * EXTENTS];
    let mut at = 0;
    while at < bytes {
        map.fill(0);
        map[0] = at;
        map[1] = bytes - at;
        map[3] = EXTENTS as u64;
        // SAFETY: the buffer has the layout and room that the request states.
        if unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, map.as_mut_ptr()) } != 0 {
            return Err(io_error(path, "map the blocks of", std::io::Error::last_os_error())
                .with_hint("use a partition, or a file on ext4 or xfs"));
        }
        let mapped = (map[2] >> 32) as usize;
        if mapped == 0 {
            return Err(refuse(at, "a hole"));
        }
        for extent in map[4..].chunks_exact(7).take(mapped) {
            let (logical, length, flags) = (extent[0], extent[2], extent[5] as u32);
            if logical > at {
                return Err(refuse(at, "a hole"));
            }
            if flags & UNFIT != 0 {
                return Err(refuse(at, "allocated but not written, shared, or stored otherwise"));
            }
            at = logical + length;
            if flags & LAST != 0 && at < bytes {
                return Err(refuse(at, "a hole"));
            }
        }
    }
    Ok(())
}

/// A page-aligned page, as direct I/O wants it.
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

/// Makes the space ours: our header, or zeros where others keep theirs.
fn claim(file: &File, path: &Path) -> Result<()> {
    let mut page = Box::new(Page([0; PAGE_BYTES]));
    file.read_exact_at(&mut page.0, 0).map_err(|cause| io_error(path, "read", cause))?;
    if page.0.starts_with(MAGIC) {
        return Ok(());
    }
    // Superblocks and labels of all common filesystems, volume managers and
    // partition tables lie in the first 128 KiB.
    let mut at = 0;
    while at < 128 * 1024 {
        file.read_exact_at(&mut page.0, at).map_err(|cause| io_error(path, "read", cause))?;
        if let Some(byte) = page.0.iter().position(|byte| *byte != 0) {
            return Err(Error::new(
                Kind::Busy,
                format!("spill {}: holds data at byte {}", path.display(), at + byte as u64),
            )
            .with_hint(format!(
                "if nothing there is needed: wipefs -a {0}; dd if=/dev/zero of={0} bs=128K count=1",
                path.display()
            )));
        }
        at += PAGE_BYTES as u64;
    }
    page.0[..MAGIC.len()].copy_from_slice(MAGIC);
    file.write_all_at(&page.0, 0).map_err(|cause| io_error(path, "write the header of", cause))?;
    file.sync_all().map_err(|cause| io_error(path, "sync", cause))
}
