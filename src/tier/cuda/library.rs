// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver's library, found and opened at run time, and its functions as
//! one table: the only place that names them. Nothing is linked and nothing
//! panics: what is missing is collected into one error.
//!
//! Results are raw numbers here, because a driver newer than this program may
//! answer with a code that no enumeration of ours knows.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::path::{Path, PathBuf};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmodule, CUstream, CUuuid,
};
use libloading::os::unix::Library as Handle;

use crate::engine::error::{Error, Kind, Result};
use crate::tier::driver_library::{self, Wanted};

/// `CUDA_SUCCESS` of `cuda.h`.
pub const SUCCESS: u32 = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_STUB_LIBRARY`: the file that a toolkit has for linking only.
pub const STUB_LIBRARY: u32 = 34;
/// `CUDA_ERROR_NO_DEVICE`.
pub const NO_DEVICE: u32 = 100;
/// `CUDA_ERROR_NOT_READY`: no failure, the work is under way.
pub const NOT_READY: u32 = 600;
/// `CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE`.
pub const PRIMARY_CONTEXT_ACTIVE: u32 = 708;
/// `CUDA_ERROR_UNKNOWN`.
pub const UNKNOWN: u32 = 999;

/// The least interface version that will do, as `cuDriverGetVersion` counts
/// (1000 a major, 10 a minor): from 11.0 on all functions below are there.
pub const LEAST_VERSION: i32 = 11_000;

/// Where the library is looked for, in this order, unless the configuration
/// names a file. The first is NixOS's; the second is what the system's loader
/// knows; the others are where distributions put it without telling the loader.
const PLACES: [&str; 7] = [
    "/run/opengl-driver/lib/libcuda.so.1",
    "libcuda.so.1",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    #[cfg(not(target_arch = "aarch64"))]
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu/nvidia/current/libcuda.so.1",
    #[cfg(not(target_arch = "aarch64"))]
    "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
];

const WANTED: Wanted = Wanted {
    what: "CUDA driver library",
    install: "install NVIDIA's driver with its libcuda (Debian: libcuda1), or name the file under [cuda] library (--cuda-library)",
    correct: "correct [cuda] library (--cuda-library), or leave it out to look in the usual places",
};

macro_rules! functions {
    ($($name:ident $(or $older:ident)? ($($argument:ty),* $(,)?);)*) => {
        /// The driver's functions under their own names; each answers with a
        /// `CUresult` as a number.
        #[expect(non_snake_case, reason = "the driver's own names")]
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> u32,)*
        }

        impl Functions {
            /// All of them, or the names that `library` has not.
            #[expect(non_snake_case, reason = "the driver's own names")]
            fn resolve(library: &Handle) -> std::result::Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the type is the one that the driver's header gives
                    // the symbol, with the result as the integer that it is.
                    let found = unsafe {
                        library.get::<unsafe extern "C" fn($($argument),*) -> u32>(stringify!($name))
                    };
                    $(
                        // SAFETY: as above; the older name has the same type.
                        let found = found.or_else(|_| unsafe { library.get(stringify!($older)) });
                    )?
                    let $name = found.map(|symbol| *symbol).ok();
                    if $name.is_none() {
                        missing.push(stringify!($name));
                    }
                )*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Self { $($name),* }),
                    _ => Err(missing),
                }
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut CUdevice, c_int);
    cuDeviceGetName(*mut c_char, c_int, CUdevice);
    // The older one answers for the whole card where it is divided.
    cuDeviceGetUuid_v2 or cuDeviceGetUuid(*mut CUuuid, CUdevice);
    cuDeviceGetPCIBusId(*mut c_char, c_int, CUdevice);
    cuDeviceTotalMem_v2(*mut usize, CUdevice);
    cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
    cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
    cuDevicePrimaryCtxRelease_v2(CUdevice);
    cuDevicePrimaryCtxSetFlags_v2(CUdevice, c_uint);
    cuCtxSetCurrent(CUcontext);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemGetAllocationGranularity(
        *mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags,
    );
    cuMemCreate(
        *mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong,
    );
    cuMemRelease(CUmemGenericAllocationHandle);
    cuMemAddressReserve(*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong);
    cuMemAddressFree(CUdeviceptr, usize);
    cuMemMap(CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong);
    cuMemUnmap(CUdeviceptr, usize);
    cuMemSetAccess(CUdeviceptr, usize, *const CUmemAccessDesc, usize);
    cuMemExportToShareableHandle(
        *mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong,
    );
    cuMemImportFromShareableHandle(
        *mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType,
    );
    cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    cuMemHostUnregister(*mut c_void);
    cuMemHostGetDevicePointer_v2(*mut CUdeviceptr, *mut c_void, c_uint);
    cuStreamCreate(*mut CUstream, c_uint);
    cuStreamDestroy_v2(CUstream);
    cuStreamQuery(CUstream);
    cuEventCreate(*mut CUevent, c_uint);
    cuEventDestroy_v2(CUevent);
    cuEventRecord(CUevent, CUstream);
    cuEventQuery(CUevent);
    // Before CUDA 12 the same under its older name, where the module is told to allow it.
    cuStreamWriteValue32_v2 or cuStreamWriteValue32(CUstream, CUdeviceptr, u32, c_uint);
    cuModuleLoadData(*mut CUmodule, *const c_void);
    cuModuleUnload(CUmodule);
    cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
    cuLaunchKernel(
        CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
        *mut *mut c_void, *mut *mut c_void,
    );
    cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
    cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
    cuGetErrorName(u32, *mut *const c_char);
    cuGetErrorString(u32, *mut *const c_char);
}

/// The opened library. Closed when dropped, so whatever points into it (a
/// context, a stream) holds it.
pub struct Library {
    /// The table.
    pub functions: Functions,
    place: PathBuf,
    _handle: Handle,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Library").field(&self.place).finish()
    }
}

impl Library {
    /// Opens `configured` and nothing else, or the first library of the usual
    /// places, and resolves all functions.
    ///
    /// Errors: `Missing` without a library, without one of its functions, for
    /// the toolkit's stub and for a driver that is too old.
    pub fn open(configured: Option<&Path>) -> Result<Self> {
        let (handle, place) = driver_library::open(configured, &PLACES, &WANTED)?;
        let version = version(&handle, &place)?;
        let functions = Functions::resolve(&handle).map_err(|missing| {
            Error::new(
                Kind::Missing,
                format!(
                    "{} ({}) lacks {}",
                    place.display(),
                    spell_version(version),
                    missing.join(", ")
                ),
            )
            .with_hint(format!(
                "install NVIDIA's own driver library, for {} or newer, or name it under [cuda] library (--cuda-library)",
                spell_version(LEAST_VERSION)
            ))
        })?;
        tracing::debug!("{} speaks {}", place.display(), spell_version(version));
        Ok(Self { functions, place, _handle: handle })
    }

    /// The file or name that was opened.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Tells two libraries in one process apart.
    pub fn identity(&self) -> usize {
        self.functions.cuInit as usize
    }

    /// A result in words: `CUDA_ERROR_NO_DEVICE (100)`.
    pub fn name_of(&self, code: u32) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the function stores a pointer to a string that lives as long
        // as the library, or null.
        let name = unsafe {
            if (self.functions.cuGetErrorName)(code, &raw mut name) != SUCCESS || name.is_null() {
                return format!("code {code}");
            }
            CStr::from_ptr(name)
        };
        format!("{} ({code})", name.to_string_lossy())
    }

    /// What the driver says about a result, to go with its name.
    fn sentence_for(&self, code: u32) -> Option<String> {
        let mut text = std::ptr::null();
        // SAFETY: as in `name_of`.
        let text = unsafe {
            if (self.functions.cuGetErrorString)(code, &raw mut text) != SUCCESS || text.is_null() {
                return None;
            }
            CStr::from_ptr(text)
        };
        Some(text.to_string_lossy().into_owned())
    }

    /// `Ok` for success, else an error that says what was being done.
    pub fn check(&self, code: u32, doing: impl FnOnce() -> String) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.error(code, doing())) }
    }

    /// A failed call as an error: what was being done, and the driver's answer.
    pub fn error(&self, code: u32, doing: String) -> Error {
        let kind = match code {
            OUT_OF_MEMORY => Kind::NoSpace,
            STUB_LIBRARY => return stub(&self.place),
            _ => Kind::Io,
        };
        let sentence = self.sentence_for(code).map_or_else(String::new, |text| format!(", {text}"));
        Error::new(kind, format!("{doing}: {}{sentence}", self.name_of(code))).with_hint(
            "look for NVRM and Xid lines in the kernel's log: journalctl -k -g 'NVRM|Xid'",
        )
    }
}

/// `13020` is "CUDA 13.2".
pub fn spell_version(version: i32) -> String {
    format!("CUDA {}.{}", version / 1000, version % 1000 / 10)
}

fn stub(place: &Path) -> Error {
    Error::new(
        Kind::Missing,
        format!(
            "{} is the CUDA toolkit's stub for linking (CUDA_ERROR_STUB_LIBRARY, 34), not the driver",
            place.display()
        ),
    )
    .with_hint("take the toolkit's stubs directory out of the loader's path, or name the driver's own libcuda.so.1 under [cuda] library (--cuda-library)")
}

/// The driver's interface version, before the table is resolved: an old driver
/// should be called old, not incomplete.
fn version(handle: &Handle, place: &Path) -> Result<i32> {
    let mut version = 0;
    // SAFETY: the type is the header's; the call stores one integer.
    let code = unsafe {
        let Ok(ask) = handle.get::<unsafe extern "C" fn(*mut c_int) -> u32>("cuDriverGetVersion")
        else {
            return Err(Error::new(
                Kind::Missing,
                format!(
                    "{} is no CUDA driver library: it lacks cuDriverGetVersion",
                    place.display()
                ),
            )
            .with_hint("name NVIDIA's libcuda.so.1 under [cuda] library (--cuda-library)"));
        };
        ask(&raw mut version)
    };
    match code {
        SUCCESS if version >= LEAST_VERSION => Ok(version),
        SUCCESS => Err(Error::new(
            Kind::Missing,
            format!(
                "{} is a driver for {} ({version}); at least {} ({LEAST_VERSION}) is needed",
                place.display(),
                spell_version(version),
                spell_version(LEAST_VERSION)
            ),
        )
        .with_hint("update the NVIDIA driver to series 450 or newer")),
        STUB_LIBRARY => Err(stub(place)),
        code => Err(Error::new(
            Kind::Io,
            format!("{} does not tell its version: code {code}", place.display()),
        )
        .with_hint(
            "check that the library and the kernel's nvidia module are of one version: nvidia-smi",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_nowhere_is_reported_with_every_place() {
        let places = ["/nonexistent/a.so.1", "/nonexistent/b.so.1"];
        let error = driver_library::open(None, &places, &WANTED).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        let text = error.to_string();
        assert!(text.contains("/nonexistent/a.so.1, /nonexistent/b.so.1"), "{text}");
        assert!(error.hint().unwrap().contains("[cuda] library"));
    }

    #[test]
    fn a_file_that_is_no_library_is_reported_with_the_loaders_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcuda.so.1");
        std::fs::write(&path, "not a library").unwrap();
        for error in [
            driver_library::open(None, &["/nonexistent/a.so.1", path.to_str().unwrap()], &WANTED)
                .unwrap_err(),
            Library::open(Some(&path)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Missing);
            let text = error.to_string();
            assert!(text.contains(path.to_str().unwrap()), "{text}");
            assert!(text.contains("file too short") || text.contains("ELF"), "{text}");
        }
    }

    #[test]
    fn the_configured_file_is_the_only_one_looked_for() {
        let error = Library::open(Some(Path::new("/nonexistent/libcuda.so.1"))).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        let text = error.to_string();
        assert_eq!(text, "the CUDA driver library /nonexistent/libcuda.so.1 does not exist");
    }

    #[test]
    fn a_library_of_something_else_is_no_driver() {
        // The C library of this very process: it is there, and it is no driver.
        let error = Library::open(Some(Path::new("libc.so.6"))).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains("lacks cuDriverGetVersion"), "{error}");
    }

    #[test]
    fn versions_are_spelled_as_people_know_them() {
        assert_eq!(spell_version(11_000), "CUDA 11.0");
        assert_eq!(spell_version(13_020), "CUDA 13.2");
    }
}
