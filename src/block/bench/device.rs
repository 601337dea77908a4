// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests to a block device or file through `O_DIRECT`: one thread for each
//! request that is to be open, each with every `depth`th block of its group's
//! part, so that in-order work stays in order on the device.

use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};

use super::book::{Book, Pick, Share};
use super::plan::{Pace, Plan};
use super::{Tally, Worker, sleep_until};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::units::PAGE_BYTES;

struct Thread {
    file: Arc<File>,
    book: Book,
    tally: Tally,
    block_bytes: u32,
    pace: Pace,
    buffer: Aligned,
}

/// Opens `path` and makes a worker for each request that is to be open.
pub(super) fn workers(path: &Path, plan: &Plan) -> Result<Vec<Box<dyn Worker>>> {
    let (file, bytes) = open(path, plan.writes())?;
    let file = Arc::new(file);
    let run = super::run_number();
    let per_group = plan.blocks_per_connection(&path.display().to_string(), bytes)?;
    let depth = u64::from(plan.depth);
    let mut workers: Vec<Box<dyn Worker>> = Vec::new();
    for group in 0..u64::from(plan.connections) {
        for thread in 0..depth {
            let share = Share {
                first: group * per_group + thread,
                stride: depth,
                count: (per_group - thread).div_ceil(depth),
            };
            workers.push(Box::new(Thread {
                file: Arc::clone(&file),
                book: Book::new(share, plan, group * depth + thread, run),
                tally: Tally::default(),
                block_bytes: plan.block_bytes,
                pace: plan.pace,
                buffer: Aligned::new(plan.block_bytes as usize),
            }));
        }
    }
    Ok(workers)
}

/// Opens `path` past the page cache; a block device that is written must
/// belong to nobody else. Returns its size too.
pub(super) fn open(path: &Path, write: bool) -> Result<(File, u64)> {
    let place = path.display();
    let failed = |error: std::io::Error| {
        let busy = matches!(error.kind(), ErrorKind::ResourceBusy | ErrorKind::ExecutableFileBusy);
        if busy {
            return Error::new(
                Kind::Busy,
                format!("{place} is in use: mounted, swapped to, or part of another device"),
            )
            .with_hint("unmount it or switch the swap off; nothing overrides this");
        }
        let hint = match error.kind() {
            ErrorKind::InvalidInput => {
                "its filesystem may lack O_DIRECT: take a disk's, or a device"
            }
            ErrorKind::PermissionDenied => "run as root",
            _ => "name a block device or a file",
        };
        let kind = match error.kind() {
            ErrorKind::NotFound => Kind::Missing,
            ErrorKind::PermissionDenied => Kind::Denied,
            _ => Kind::Io,
        };
        Error::new(kind, format!("cannot open {place}")).with_source(error).with_hint(hint)
    };
    let is_device = std::fs::metadata(path).map_err(failed)?.file_type().is_block_device();
    let mut flags = OFlags::DIRECT | OFlags::CLOEXEC;
    flags |= if write { OFlags::RDWR } else { OFlags::RDONLY };
    if write && is_device {
        // On a block device this means: nobody else may have claimed it.
        flags |= OFlags::EXCL;
    }
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let mut file = File::from(file);
    let bytes = file.seek(SeekFrom::End(0)).map_err(failed)?;
    Ok((file, bytes))
}

impl Thread {
    fn request(&mut self, pick: Pick) {
        let offset = self.book.offset(pick.index, self.block_bytes);
        if let (true, Some(version)) = (pick.write, pick.version) {
            for (within, page) in self.buffer.bytes().chunks_exact_mut(PAGE_BYTES).enumerate() {
                self.book.page(pick.index, within as u64, version).fill(page);
            }
        }
        let since = Instant::now();
        let result = if pick.write {
            self.file.write_all_at(self.buffer.bytes(), offset)
        } else {
            self.file.read_exact_at(self.buffer.bytes(), offset)
        };
        let latency = since.elapsed();
        if pick.write {
            self.tally.writes.record(latency);
        } else {
            self.tally.reads.record(latency);
        }
        if let Err(error) = &result {
            self.tally.errors += 1;
            let what = if pick.write { "write" } else { "read" };
            self.tally.note(|| format!("{what} at byte {offset}: {error}"));
        } else if let (false, Some(version)) = (pick.write, pick.version) {
            self.tally.compare(&self.book, pick.index, version, self.buffer.bytes());
        }
        self.book.close(pick, result.is_err());
    }

    fn next(&mut self) {
        // With one request open at a time no block is ever refused.
        if let Some(pick) = self.book.next_request() {
            self.request(pick);
        }
    }
}

impl Worker for Thread {
    fn fill(&mut self) -> Result<()> {
        while let Some(pick) = self.book.next_fill() {
            self.request(pick);
        }
        self.book.rewind();
        self.tally.restart();
        Ok(())
    }

    fn run(&mut self, start: Instant, end: Instant) -> Result<()> {
        match self.pace {
            Pace::Full => {
                while Instant::now() < end {
                    self.next();
                }
            }
            Pace::Pause(rest) => {
                sleep_until(start + rest);
                while Instant::now() < end {
                    self.next();
                    std::thread::sleep(rest);
                }
            }
            Pace::Every(interval) => {
                let mut number = 0;
                loop {
                    let when = super::tick(start, interval, &mut number);
                    if when >= end {
                        break;
                    }
                    sleep_until(when);
                    self.next();
                }
            }
        }
        Ok(())
    }

    fn into_tally(self: Box<Self>) -> Tally {
        self.tally
    }
}

/// Memory that begins on a page boundary, as `O_DIRECT` asks.
struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    fn new(bytes: usize) -> Self {
        let memory = vec![0; bytes + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES);
        Self { memory, start, bytes }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}
