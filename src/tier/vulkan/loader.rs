// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Vulkan loader, found and opened at run time, one instance of it, and the
//! drivers' error codes in words. Nothing is linked.

use std::ffi::CStr;
use std::path::{Path, PathBuf};

use ash::vk;
use libloading::os::unix::Library as Handle;

use crate::engine::error::{Error, Kind, Result};
use crate::tier::driver_library::{self, Wanted};

/// Where the loader is looked for, in this order, unless the configuration names
/// a file: what the system's loader of libraries knows, then NixOS's places, then
/// where distributions put it without telling.
const PLACES: [&str; 6] = [
    "libvulkan.so.1",
    "/run/opengl-driver/lib/libvulkan.so.1",
    "/run/current-system/sw/lib/libvulkan.so.1",
    #[cfg(target_arch = "aarch64")]
    "/usr/lib/aarch64-linux-gnu/libvulkan.so.1",
    #[cfg(not(target_arch = "aarch64"))]
    "/usr/lib/x86_64-linux-gnu/libvulkan.so.1",
    "/usr/lib64/libvulkan.so.1",
    "/usr/lib/libvulkan.so.1",
];

const WANTED: Wanted = Wanted {
    what: "Vulkan loader",
    install: "install it (Debian: libvulkan1), or name the file under [vulkan] library (--vulkan-library)",
    correct: "correct [vulkan] library (--vulkan-library), or leave it out to look in the usual places",
};

/// The newest interface version that is made use of.
const NEWEST: u32 = vk::API_VERSION_1_3;
/// The least that will do, of the loader and of a device: external memory and
/// device properties are part of it.
pub const LEAST: u32 = vk::API_VERSION_1_1;

/// An instance of the interface; undone when dropped, the library last.
pub struct Instance {
    /// Its functions.
    pub raw: ash::Instance,
    /// Where the loader was found.
    pub place: PathBuf,
    _library: Handle,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Vulkan of {}", self.place.display())
    }
}

impl Instance {
    /// Opens the loader, which opens every driver that it finds.
    pub fn open(library: Option<&Path>) -> Result<Self> {
        let (library, place) = driver_library::open(library, &PLACES, &WANTED)?;
        // SAFETY: the type is the one that Vulkan's header gives this symbol.
        let start = unsafe {
            library
                .get::<vk::PFN_vkGetInstanceProcAddr>("vkGetInstanceProcAddr")
                .map(|found| *found)
        };
        let Ok(get_instance_proc_addr) = start else {
            let text =
                format!("{} is no Vulkan loader: it lacks vkGetInstanceProcAddr", place.display());
            return Err(Error::new(Kind::Missing, text)
                .with_hint("name libvulkan.so.1 under [vulkan] library (--vulkan-library)"));
        };
        // SAFETY: the function is the loader's, which stays open as long as this.
        let entry = unsafe { ash::Entry::from_static_fn(ash::StaticFn { get_instance_proc_addr }) };
        let raw = instance(&entry, &place)?;
        Ok(Self { raw, place, _library: library })
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: made by `open`; whatever was made of it holds it, so all that is gone.
        unsafe { self.raw.destroy_instance(None) };
    }
}

fn instance(entry: &ash::Entry, place: &Path) -> Result<ash::Instance> {
    let shown = place.display();
    // SAFETY: stores one number.
    let version = unsafe { entry.try_enumerate_instance_version() }
        .map_err(|code| error(code, format!("{shown} does not tell its version")))?
        .unwrap_or(vk::API_VERSION_1_0);
    if version < LEAST {
        let text = format!(
            "{shown} is a loader for Vulkan {}; at least {} is needed",
            spell_version(version),
            spell_version(LEAST)
        );
        return Err(Error::new(Kind::Missing, text).with_hint("update libvulkan1"));
    }
    let application =
        vk::ApplicationInfo::default().application_name(c"sluice").api_version(version.min(NEWEST));
    let info = vk::InstanceCreateInfo::default().application_info(&application);
    // SAFETY: both structures outlive the call, which copies what it needs.
    unsafe { entry.create_instance(&info, None) }.map_err(|code| {
        let error = error(code, format!("{shown} cannot start any driver"));
        if code == vk::Result::ERROR_INCOMPATIBLE_DRIVER {
            return Error::new(Kind::Missing, error.to_string()).with_hint(
                "install the Vulkan part of the GPU's driver: its manifest belongs in \
                 /usr/share/vulkan/icd.d or /etc/vulkan/icd.d (NixOS: /run/opengl-driver/share/vulkan/icd.d)",
            );
        }
        error
    })
}

/// A driver's refusal as an error about `doing`.
pub fn error(code: vk::Result, doing: impl Into<String>) -> Error {
    let kind = match code {
        vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
        | vk::Result::ERROR_OUT_OF_HOST_MEMORY
        | vk::Result::ERROR_TOO_MANY_OBJECTS => Kind::NoSpace,
        vk::Result::ERROR_INVALID_EXTERNAL_HANDLE => Kind::Invalid,
        vk::Result::ERROR_EXTENSION_NOT_PRESENT
        | vk::Result::ERROR_FEATURE_NOT_PRESENT
        | vk::Result::ERROR_INCOMPATIBLE_DRIVER => Kind::Missing,
        vk::Result::TIMEOUT => Kind::TimedOut,
        _ => Kind::Io,
    };
    let error = Error::new(kind, format!("{}: {code:?} ({})", doing.into(), code.as_raw()));
    if kind == Kind::Io {
        return error
            .with_hint("look for the GPU driver's lines in the kernel's log: journalctl -k -b");
    }
    error
}

/// `VK_MAKE_API_VERSION(0, 1, 3, 230)` is "1.3.230".
pub fn spell_version(version: u32) -> String {
    format!(
        "{}.{}.{}",
        vk::api_version_major(version),
        vk::api_version_minor(version),
        vk::api_version_patch(version)
    )
}

/// The text in a driver's fixed buffer.
pub fn text(buffer: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = buffer.iter().map(|c| c.cast_unsigned()).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_that_is_nowhere_is_reported_with_every_place() {
        let places = ["/nonexistent/a.so.1", "/nonexistent/b.so.1"];
        let error = driver_library::open(None, &places, &WANTED).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        let text = error.to_string();
        assert!(text.contains("/nonexistent/a.so.1, /nonexistent/b.so.1"), "{text}");
        assert!(error.hint().unwrap().contains("[vulkan] library"));
    }

    #[test]
    fn a_library_of_something_else_is_no_loader() {
        // The C library of this very process: it is there, and it is no loader.
        let error = Instance::open(Some(Path::new("libc.so.6"))).unwrap_err();
        assert_eq!(error.kind(), Kind::Missing);
        assert!(error.to_string().contains("lacks vkGetInstanceProcAddr"), "{error}");
        let error = Instance::open(Some(Path::new("/nonexistent/libvulkan.so.1"))).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "the Vulkan loader /nonexistent/libvulkan.so.1 does not exist");
    }

    #[test]
    fn a_code_that_means_no_room_is_told_from_others() {
        assert_eq!(error(vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, "x").kind(), Kind::NoSpace);
        let lost = error(vk::Result::ERROR_DEVICE_LOST, "a copy");
        assert_eq!(lost.to_string(), "a copy: ERROR_DEVICE_LOST (-4)");
        assert_eq!(spell_version(vk::make_api_version(0, 1, 3, 230)), "1.3.230");
    }
}
