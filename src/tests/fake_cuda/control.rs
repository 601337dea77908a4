// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control file: an array of 64-bit words in native byte order, mapped
//! shared by the library and by whoever steers it, so that a running program
//! can be hit at any moment. The variable [`VARIABLE`] names it; without the
//! variable the library has one healthy device of 1 GiB.
//!
//! Words that count down (`...At`) name an operation from now on: 1 is the next
//! one; 0 is none. They reach 0 when they have struck.

use std::ffi::CString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The environment variable that names the control file.
pub const VARIABLE: &str = "SLUICE_FAKE_CUDA";
/// The environment variable that names the root below which device nodes are
/// looked for; `/` without it.
pub const ROOT: &str = "SLUICE_FAKE_CUDA_ROOT";
/// The first word of a control file: "SLFAKECU" as big-endian text.
pub const MAGIC: u64 = 0x534c_4641_4b45_4355;
/// Words in a control file: one page.
pub const WORDS: usize = 512;
/// The most devices.
pub const MAX_DEVICES: usize = 8;

macro_rules! words {
    ($($(#[doc = $doc:literal])* $word:ident = $index:literal, $name:literal, $first:expr;)*) => {
        /// One word of the control file, by its index.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Word { $($(#[doc = $doc])* $word = $index,)* }

        /// Every word: itself, its name for the command line, its value in a new file.
        pub const ALL: &[(Word, &str, u64)] = &[$((Word::$word, $name, $first),)*];
    };
}

words! {
    /// [`MAGIC`].
    Magic = 0, "magic", MAGIC;
    /// Devices there are, 0 to 8; with 0 `cuInit` answers 100.
    Devices = 1, "devices", 1;
    /// What `cuDriverGetVersion` says: 1000 x major + 10 x minor.
    DriverVersion = 2, "driver-version", 13_000;
    /// Bytes of each device.
    DeviceBytes = 3, "device-bytes", 1 << 30;
    /// Bytes of device 0 that others use; seven neighbours for devices 1 to 7.
    Others0 = 4, "others-0", 0;
    /// The same, device 1.
    Others1 = 5, "others-1", 0;
    /// The same, device 2.
    Others2 = 6, "others-2", 0;
    /// The same, device 3.
    Others3 = 7, "others-3", 0;
    /// The same, device 4.
    Others4 = 8, "others-4", 0;
    /// The same, device 5.
    Others5 = 9, "others-5", 0;
    /// The same, device 6.
    Others6 = 10, "others-6", 0;
    /// The same, device 7.
    Others7 = 11, "others-7", 0;
    /// So many calls of `cuInit` fail.
    InitFailures = 12, "init-failures", 0;
    /// With this code.
    InitCode = 13, "init-code", 999;
    /// Not 0: every call answers 34, as the toolkit's stub library does.
    Stub = 14, "stub", 0;
    /// Not 0: the devices cannot do virtual memory management.
    NoVirtualMemory = 15, "no-virtual-memory", 0;
    /// Which devices the faults below concern, one bit each; 0 is all.
    FaultDevices = 16, "fault-devices", 0;
    /// Which copies the faults below concern: 0 all, 1 to the device, 2 from it.
    FaultDirection = 17, "fault-direction", 0;
    /// This copy call fails at once, and nothing is queued.
    CopyFailAt = 18, "copy-fail-at", 0;
    /// With this code.
    CopyFailCode = 19, "copy-fail-code", 999;
    /// This copy fails when it is performed; the device is lost to the process.
    AsyncFailAt = 20, "async-fail-at", 0;
    /// With this code.
    AsyncFailCode = 21, "async-fail-code", 719;
    /// One byte of every so-manieth performed copy is flipped; 0: none.
    CorruptEvery = 22, "corrupt-every", 0;
    /// This copy call never returns.
    HangCopyAt = 23, "hang-copy-at", 0;
    /// This recorded event, written word or launch never completes, nor what
    /// follows it in its stream.
    HangEventAt = 24, "hang-event-at", 0;
    /// While a device's bit is set, nothing on it completes.
    StalledDevices = 25, "stalled-devices", 0;
    /// While a device's bit is set, every call that concerns it fails.
    LostDevices = 26, "lost-devices", 0;
    /// With this code.
    LostCode = 27, "lost-code", 999;
    /// Nanoseconds of device time that each copy takes, one after the other.
    CopyNanoseconds = 28, "copy-nanoseconds", 0;
    /// Nanoseconds that a copy call keeps its caller busy.
    CallNanoseconds = 29, "call-nanoseconds", 0;
    /// How often a question about unfinished work is answered "not ready"
    /// before the work is looked at.
    NotReadyAnswers = 30, "not-ready-answers", 0;
    /// A [`crate::Call`] by number: which function [`Word::CallFailAt`] counts.
    CallFails = 31, "call-fails", 0;
    /// This call of it fails.
    CallFailAt = 32, "call-fail-at", 0;
    /// With this code.
    CallFailCode = 33, "call-fail-code", 999;
    /// Not 0: a start opens the device nodes there are (`nvidiactl`, `nvidia-uvm`,
    /// `nvidia0` to 7 in `/dev`) and keeps them open to the end of the process,
    /// whatever is released and unloaded, as libcuda does. The variable
    /// [`ROOT`] names another root.
    KeepsNodes = 40, "keeps-nodes", 0;

    /// Counted by the library: calls that used it wrongly, whatever it answered.
    Misuses = 64, "misuses", 0;
    /// The code answered to the last of them.
    LastMisuse = 65, "last-misuse", 0;
    /// Copies queued.
    CopiesQueued = 66, "copies-queued", 0;
    /// Copies performed.
    CopiesDone = 67, "copies-done", 0;
    /// Bytes they moved.
    BytesDone = 68, "bytes-done", 0;
    /// Copies whose data were flipped.
    CopiesCorrupted = 69, "copies-corrupted", 0;
    /// Memory handles not yet released.
    Handles = 70, "handles", 0;
    /// Ranges mapped.
    Mappings = 71, "mappings", 0;
    /// Address ranges reserved.
    Reservations = 72, "reservations", 0;
    /// Ranges of host memory registered.
    Registrations = 73, "registrations", 0;
    /// Streams not yet destroyed.
    Streams = 74, "streams", 0;
    /// Events not yet destroyed.
    Events = 75, "events", 0;
    /// Contexts that are retained.
    Contexts = 76, "contexts", 0;
    /// Modules not yet unloaded.
    Modules = 77, "modules", 0;
    /// Launches queued, ever.
    Launches = 78, "launches", 0;
}

/// A mapped control file.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    words: &'static [AtomicU64; WORDS],
}

impl Control {
    /// Makes the file anew, with one healthy device of 1 GiB, and maps it.
    pub fn create(path: &Path) -> Result<Self> {
        let mut bytes = vec![0_u8; WORDS * 8];
        for (word, _, first) in ALL {
            bytes[*word as usize * 8..][..8].copy_from_slice(&first.to_ne_bytes());
        }
        std::fs::write(path, bytes)?;
        Self::open(path)
    }

    /// Maps an existing file, for the rest of the process's life.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != WORDS as u64 * 8 {
            return Err(not_one(path));
        }
        // SAFETY: a new shared mapping of a file of that very length.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                WORDS * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        // SAFETY: page-aligned, never unmapped, and only used as atomics.
        let words = unsafe { &*base.cast::<[AtomicU64; WORDS]>() };
        let control = Self { words };
        if control.get(Word::Magic) == MAGIC { Ok(control) } else { Err(not_one(path)) }
    }

    /// Reads a word.
    pub fn get(&self, word: Word) -> u64 {
        self.words[word as usize].load(Ordering::SeqCst)
    }

    /// Writes a word.
    pub fn set(&self, word: Word, value: u64) {
        self.words[word as usize].store(value, Ordering::SeqCst);
    }

    /// Sets what is used by others on a device.
    pub fn set_others(&self, device: usize, bytes: u64) {
        assert!(device < MAX_DEVICES);
        self.words[Word::Others0 as usize + device].store(bytes, Ordering::SeqCst);
    }

    pub(crate) fn others(&self, device: usize) -> u64 {
        self.words[Word::Others0 as usize + device].load(Ordering::SeqCst)
    }

    pub(crate) fn devices(&self) -> usize {
        (self.get(Word::Devices) as usize).min(MAX_DEVICES)
    }

    /// Adds to a counter; gives its new value.
    pub(crate) fn add(&self, word: Word, more: u64) -> u64 {
        self.words[word as usize].fetch_add(more, Ordering::SeqCst).wrapping_add(more)
    }

    pub(crate) fn less(&self, word: Word) {
        self.words[word as usize].fetch_sub(1, Ordering::SeqCst);
    }

    /// Counts down; true for the operation that reaches 0.
    pub(crate) fn strikes(&self, word: Word) -> bool {
        let down = |left: u64| left.checked_sub(1);
        self.words[word as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, down) == Ok(1)
    }
}

fn not_one(path: &Path) -> Error {
    Error::new(
        ErrorKind::InvalidData,
        format!(
            "{} is no control file of the fake driver; make one with fake-cuda-ctl",
            path.display()
        ),
    )
}

/// The library's own, found at the first call. `None`: the variable names
/// something that is no control file.
pub(crate) fn found() -> Option<Control> {
    static FOUND: OnceLock<Option<Control>> = OnceLock::new();
    static HEALTHY: OnceLock<[AtomicU64; WORDS]> = OnceLock::new();
    *FOUND.get_or_init(|| match std::env::var_os(VARIABLE) {
        Some(path) => Control::open(Path::new(&path)).ok(),
        None => Some(Control {
            words: HEALTHY.get_or_init(|| {
                let words = [const { AtomicU64::new(0) }; WORDS];
                for (word, _, first) in ALL {
                    words[*word as usize].store(*first, Ordering::SeqCst);
                }
                words
            }),
        }),
    })
}

/// Writes a copy of the library at `from` to `to` in which `symbol` cannot be
/// found: its name in the table of dynamic symbols is spoiled.
pub fn omit_symbol(from: &Path, symbol: &str, to: &Path) -> Result<()> {
    let mut bytes = std::fs::read(from)?;
    let mut name = CString::new(symbol)?.into_bytes_with_nul();
    name.insert(0, 0);
    let places: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter_map(|(at, window)| (window == name).then_some(at))
        .collect();
    if places.is_empty() {
        let from = String::from_utf8_lossy(from.as_os_str().as_bytes()).into_owned();
        return Err(Error::new(ErrorKind::NotFound, format!("{from} has no symbol {symbol}")));
    }
    for at in places {
        bytes[at + 1] = b'_';
    }
    std::fs::write(to, bytes)
}
