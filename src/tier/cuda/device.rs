// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver started, one device chosen, and that device's primary context:
//! what everything else of this tier hangs on.

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUcontext, CUctx_flags, CUdevice, CUdevice_attribute, CUuuid};

use super::library::{Library, NO_DEVICE, PRIMARY_CONTEXT_ACTIVE, STUB_LIBRARY, SUCCESS, UNKNOWN};
use super::nodes;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::{GpuSelector, PciAddress};
use crate::engine::units::ByteLen;

/// What a device must be able to do, and how to say that it is not.
const NEEDED: [(CUdevice_attribute, &str); 3] = [
    (
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        "map memory by handles (virtual memory management)",
    ),
    (
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        "give out its memory as file descriptors",
    ),
    (
        CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
        "reach host memory that was registered",
    ),
];

/// What is known of a device for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its number in the driver's own order.
    pub index: u32,
    /// The model's name.
    pub name: String,
    /// Its UUID; `None`: the driver does not tell.
    pub uuid: Option<[u8; 16]>,
    /// Its PCI address; `None`: the driver does not tell.
    pub pci: Option<PciAddress>,
    /// All of its memory.
    pub total: ByteLen,
}

impl Facts {
    fn answers_to(&self, selector: &GpuSelector) -> bool {
        match selector {
            GpuSelector::Index(index) => self.index == *index,
            GpuSelector::Uuid(uuid) => self.uuid.as_ref() == Some(uuid),
            GpuSelector::Pci(address) => self.pci.as_ref() == Some(address),
        }
    }
}

impl std::fmt::Display for Facts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.index, self.name)?;
        if let Some(uuid) = self.uuid {
            write!(f, ", {}", GpuSelector::Uuid(uuid))?;
        }
        if let Some(pci) = self.pci {
            write!(f, ", {pci}")?;
        }
        write!(f, ", {})", self.total)
    }
}

/// How to reach a device.
#[derive(Clone, Debug)]
pub struct Place {
    /// The driver's library; `None`: in the usual places.
    pub library: Option<PathBuf>,
    /// Which of the driver's devices.
    pub device: GpuSelector,
    /// Where `/dev` and `/proc` are looked for.
    pub root: PathBuf,
}

/// A device of a started driver, nothing held of it.
#[derive(Debug)]
pub struct Device {
    /// The driver.
    pub library: Arc<Library>,
    /// The driver's handle.
    pub raw: CUdevice,
    /// What it is.
    pub facts: Facts,
}

impl Device {
    /// Opens the library, starts the driver and chooses the device.
    pub fn open(place: &Place) -> Result<Self> {
        let library = Arc::new(Library::open(place.library.as_deref())?);
        LOADED.store(true, Ordering::Relaxed);
        start(&library, &place.root)?;
        let all = list(&library)?;
        let Some((raw, facts)) =
            all.iter().find(|(_, facts)| facts.answers_to(&place.device)).cloned()
        else {
            let known: Vec<String> = all.iter().map(|(_, facts)| facts.to_string()).collect();
            return Err(Error::new(
                Kind::Missing,
                format!("no GPU {} here; the driver has {}", place.device, known.join("; ")),
            )
            .with_hint(
                "correct [cuda] devices (--cuda-device); nvidia-smi -L shows numbers and UUIDs",
            ));
        };
        let device = Self { library, raw, facts };
        device.check()?;
        Ok(device)
    }

    /// One of the device's properties.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        let mut value = 0;
        // SAFETY: stores one integer; the device is one that the driver listed.
        let code = unsafe {
            (self.library.functions.cuDeviceGetAttribute)(&raw mut value, attribute, self.raw)
        };
        self.library.check(code, || format!("GPU {}: cannot ask what it can do", self.facts))?;
        Ok(value)
    }

    fn check(&self) -> Result<()> {
        for (attribute, ability) in NEEDED {
            if self.attribute(attribute)? == 0 {
                return Err(Error::new(
                    Kind::Missing,
                    format!("GPU {} cannot {ability}", self.facts),
                )
                .with_hint("choose another GPU under [cuda] devices"));
            }
        }
        // Its memory is the machine's own: swap in it would make room by taking it.
        if self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0 {
            return Err(Error::new(
                Kind::Invalid,
                format!("GPU {} has no memory of its own, only the machine's", self.facts),
            )
            .with_hint(
                "choose a discrete GPU under [cuda] devices; zram fits a machine without one",
            ));
        }
        Ok(())
    }
}

/// `cuInit`, with each way in which it is known to fail told apart.
fn start(library: &Library, root: &Path) -> Result<()> {
    // SAFETY: flags must be 0; may be called again.
    let code = unsafe { (library.functions.cuInit)(0) };
    if code == SUCCESS {
        return Ok(());
    }
    let error =
        library.error(code, format!("{} cannot start the driver", library.place().display()));
    if code == STUB_LIBRARY {
        return Err(error);
    }
    if let Some(trouble) = nodes::trouble(root) {
        return Err(
            Error::new(trouble.kind, format!("{error}: {}", trouble.what)).with_hint(trouble.hint)
        );
    }
    Err(match code {
        NO_DEVICE => Error::new(Kind::Missing, format!("{error}: it finds no GPU"))
            .with_hint("check nvidia-smi -L, and that CUDA_VISIBLE_DEVICES is not set to nothing"),
        UNKNOWN => Error::new(Kind::Io, error.to_string()).with_hint(
            "after a resume nvidia-uvm may have to be loaded anew: modprobe -r nvidia-uvm && modprobe nvidia-uvm",
        ),
        _ => error,
    })
}

/// Every device of the started driver.
fn list(library: &Library) -> Result<Vec<(CUdevice, Facts)>> {
    let f = &library.functions;
    let mut count = 0;
    // SAFETY: stores one integer.
    let code = unsafe { (f.cuDeviceGetCount)(&raw mut count) };
    library.check(code, || "cannot count the GPUs".into())?;
    if count <= 0 {
        return Err(Error::new(
            Kind::Missing,
            format!("{} has no GPU to offer", library.place().display()),
        )
        .with_hint("check nvidia-smi -L, and that CUDA_VISIBLE_DEVICES is not set to nothing"));
    }
    (0..count).map(|index| describe(library, index)).collect()
}

fn describe(library: &Library, index: i32) -> Result<(CUdevice, Facts)> {
    /// Longer than any name that was seen; the driver cuts and terminates.
    const TEXT: usize = 128;
    let f = &library.functions;
    let what = || format!("GPU {index}: cannot ask what it is");
    let mut raw = 0;
    let mut name: [c_char; TEXT] = [0; TEXT];
    let mut total = 0;
    // SAFETY: each call stores into a variable of its type, the text with its length.
    unsafe {
        library.check((f.cuDeviceGet)(&raw mut raw, index), what)?;
        library.check((f.cuDeviceGetName)(name.as_mut_ptr(), TEXT as i32, raw), what)?;
        library.check((f.cuDeviceTotalMem_v2)(&raw mut total, raw), what)?;
    }
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: stores sixteen bytes.
    let known = unsafe { (f.cuDeviceGetUuid_v2)(&raw mut uuid, raw) } == SUCCESS;
    let mut address: [c_char; TEXT] = [0; TEXT];
    // SAFETY: stores a terminated text within the length.
    let addressed =
        unsafe { (f.cuDeviceGetPCIBusId)(address.as_mut_ptr(), TEXT as i32, raw) } == SUCCESS;
    let facts = Facts {
        index: index.cast_unsigned(),
        name: text(&name),
        uuid: known.then(|| uuid.bytes.map(c_char::cast_unsigned)),
        // An address that cannot be read is one that nobody can name.
        pci: if addressed { text(&address).parse().ok() } else { None },
        total: ByteLen(total as u64),
    };
    Ok((raw, facts))
}

fn text(buffer: &[c_char; 128]) -> String {
    let bytes = buffer.map(c_char::cast_unsigned);
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// Names contexts, so that one that was released and retained again is another.
static CONTEXTS: AtomicU64 = AtomicU64::new(1);
/// Whether this process ever loaded a driver.
static LOADED: AtomicBool = AtomicBool::new(false);
/// The library and device of each that is not released.
static LIVE: Mutex<Vec<(usize, CUdevice)>> = Mutex::new(Vec::new());

fn live() -> MutexGuard<'static, Vec<(usize, CUdevice)>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The context that this thread uses; 0: none yet. Needs no allocation.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// A device's primary context, retained until dropped.
#[derive(Debug)]
pub struct Context {
    /// The device.
    pub device: Device,
    /// Unique among all contexts of this process.
    pub id: u64,
    raw: CUcontext,
}

// SAFETY: a context may be used by any thread that made it current.
unsafe impl Send for Context {}
// SAFETY: the driver's functions are safe to call from many threads at once.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context, which makes the device cost memory.
    pub fn open(device: Device) -> Result<Self> {
        let f = &device.library.functions;
        // Waiting for the device (only ever in give-back and at start) should
        // not keep a core busy.
        let flags = CUctx_flags::CU_CTX_SCHED_BLOCKING_SYNC as u32;
        // SAFETY: the device is one that the driver listed.
        let code = unsafe { (f.cuDevicePrimaryCtxSetFlags_v2)(device.raw, flags) };
        if code != PRIMARY_CONTEXT_ACTIVE {
            device.library.check(code, || format!("GPU {}: context flags", device.facts))?;
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: stores one handle.
        let code = unsafe { (f.cuDevicePrimaryCtxRetain)(&raw mut raw, device.raw) };
        device.library.check(code, || format!("GPU {}: cannot open a context", device.facts))?;
        let id = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        let context = Self { device, id, raw };
        live().push(context.key());
        Ok(context)
    }

    /// Names the device among those of all libraries of this process.
    pub fn key(&self) -> (usize, CUdevice) {
        (self.library().identity(), self.device.raw)
    }

    /// Whether the device that `key` names is kept open by a context of this
    /// process.
    pub fn is_live(key: (usize, CUdevice)) -> bool {
        live().contains(&key)
    }

    /// Whether a driver was loaded and no device is open any more.
    pub fn all_are_released() -> bool {
        LOADED.load(Ordering::Relaxed) && live().is_empty()
    }

    /// The driver.
    pub fn library(&self) -> &Library {
        &self.device.library
    }

    /// Makes this the calling thread's context; the driver's answer. Costs
    /// nothing while it is, and after a thread's first time never allocates.
    pub fn enter_raw(&self) -> u32 {
        if CURRENT.get() == self.id {
            return SUCCESS;
        }
        // SAFETY: the context is retained.
        let code = unsafe { (self.library().functions.cuCtxSetCurrent)(self.raw) };
        CURRENT.set(if code == SUCCESS { self.id } else { 0 });
        code
    }

    /// The same, off the I/O path.
    pub fn enter(&self) -> Result<()> {
        self.library().check(self.enter_raw(), || {
            format!("GPU {}: cannot enter its context", self.device.facts)
        })
    }

    /// Bytes of the device that anybody could still take, and all it has.
    pub fn memory(&self) -> Result<(u64, u64)> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: stores two sizes.
        let code =
            unsafe { (self.library().functions.cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.library()
            .check(code, || format!("GPU {}: cannot ask for its free memory", self.device.facts))?;
        Ok((free as u64, total as u64))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained by `open`, released once; nothing of it is left, as
        // everything made in a context holds it.
        let code =
            unsafe { (self.library().functions.cuDevicePrimaryCtxRelease_v2)(self.device.raw) };
        let mut live = live();
        if let Some(at) = live.iter().position(|key| *key == self.key()) {
            live.swap_remove(at);
        }
        drop(live);
        if code != SUCCESS {
            tracing::warn!(
                "GPU {}: its context was not released: {}",
                self.device.facts,
                self.library().name_of(code)
            );
        }
    }
}
