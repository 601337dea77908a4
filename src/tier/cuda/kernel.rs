// SPDX-License-Identifier: MIT OR Apache-2.0
//! One launch that copies many pages: its code, its parameter, and the module
//! that a context has of it.
//!
//! The driver translates the text for the device at hand when it is loaded, so
//! nothing of a toolkit is needed. It needs its own compiler library for that
//! (`libnvidia-ptxjitcompiler.so.1`); without it pages are copied call by call.

use std::ffi::{CStr, CString};
use std::sync::Arc;

use cudarc::driver::sys::{CUdevice_attribute, CUfunction, CUmodule, CUstream};

use super::device::Context;
use super::library::SUCCESS;
use crate::engine::error::{Error, Kind, Result};

/// The most pages of one launch: as many as fit into the oldest device's
/// parameter space (4096 bytes) with room to spare.
pub const BATCH_PAGES: usize = 128;
/// Sixteen bytes each make a page.
const THREADS: u32 = 256;
const NAME: &CStr = c"sluice_copy_pages";
/// For devices whose memory model has cumulative fences (compute capability 7.0 and newer).
const TEXT: &str = include_str!("copy_pages.ptx");
/// What differs for older ones: there each thread orders its own store before
/// the barrier, and a volatile store is the widest in scope.
const OLDER: [(&str, &str); 4] = [
    (".target sm_70\n", ".target sm_50\n"),
    ("    bar.sync 0;\n", "    membar.sys;\n    bar.sync 0;\n"),
    ("    fence.acq_rel.sys;\n", "    membar.sys;\n"),
    ("st.relaxed.sys.global", "st.volatile.global"),
];

fn text(major: i32) -> CString {
    let text = match major {
        7.. => TEXT.to_owned(),
        _ => OLDER.iter().fold(TEXT.to_owned(), |text, (new, old)| text.replace(new, old)),
    };
    CString::new(text).expect("the text has no NUL")
}

/// Where one page goes and where it comes from, addresses of the device.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Move {
    to: u64,
    from: u64,
}

/// The kernel's parameter. The driver copies it when it is launched.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Batch {
    words: u64,
    value: u32,
    pages: u32,
    moves: [Move; BATCH_PAGES],
}

// What the kernel declares.
const _: () = assert!(size_of::<Batch>() == 2064);

impl Batch {
    /// With nothing to do.
    pub fn new() -> Self {
        Self { words: 0, value: 0, pages: 0, moves: [Move { to: 0, from: 0 }; BATCH_PAGES] }
    }

    /// Forgets all pages.
    pub fn clear(&mut self) {
        self.pages = 0;
    }

    /// Pages to copy.
    pub fn pages(&self) -> usize {
        self.pages as usize
    }

    /// One more page.
    ///
    /// # Panics
    /// When there are [`BATCH_PAGES`] already.
    pub fn push(&mut self, to: u64, from: u64) {
        self.moves[self.pages as usize] = Move { to, from };
        self.pages += 1;
    }
}

/// The kernel in a context; unloaded when dropped.
#[derive(Debug)]
pub struct Kernel {
    module: CUmodule,
    function: CUfunction,
    context: Arc<Context>,
}

// SAFETY: both are handles that any thread may pass to the driver.
unsafe impl Send for Kernel {}
// SAFETY: as above; the driver's functions are safe to call from many threads.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Has the driver translate the kernel for the context's device. Costs
    /// milliseconds, and reads and maps the driver's compiler.
    ///
    /// Errors: `Missing` where the driver cannot translate it.
    pub fn load(context: &Arc<Context>) -> Result<Self> {
        context.enter()?;
        let library = context.library();
        let f = &library.functions;
        let facts = &context.device.facts;
        let major = context
            .device
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let text = text(major);
        let mut module = std::ptr::null_mut();
        // SAFETY: stores one handle; the text is terminated and outlives the call.
        let code = unsafe { (f.cuModuleLoadData)(&raw mut module, text.as_ptr().cast()) };
        if code != SUCCESS {
            let name = library.name_of(code);
            return Err(Error::new(
                Kind::Missing,
                format!("GPU {facts}: the driver cannot translate the copy kernel: {name}"),
            )
            .with_hint(
                "install libnvidia-ptxjitcompiler.so.1 of the driver's version (Debian: libnvidia-ptxjitcompiler1)",
            ));
        }
        // From here on dropping undoes.
        let mut kernel =
            Self { module, function: std::ptr::null_mut(), context: Arc::clone(context) };
        // SAFETY: stores one handle; the name is terminated.
        let code =
            unsafe { (f.cuModuleGetFunction)(&raw mut kernel.function, module, NAME.as_ptr()) };
        library.check(code, || format!("GPU {facts}: looking for the copy kernel"))?;
        Ok(kernel)
    }

    /// Queues the batch on a stream of the same context; the driver's answer.
    /// Each page's block at last writes `value` into its word, the first of
    /// which is at `words` (an address of the device).
    ///
    /// # Safety
    /// Each page of the batch is reachable by the device and stays so until its
    /// word is written, as do the words; no page is written by anybody else.
    pub unsafe fn launch(
        &self,
        stream: CUstream,
        batch: &mut Batch,
        words: u64,
        value: u32,
    ) -> u32 {
        (batch.words, batch.value) = (words, value);
        let pages = batch.pages;
        let mut parameters = [std::ptr::from_mut(batch).cast()];
        // SAFETY: the kernel takes one parameter of this very size, which the
        // driver copies during the call; the rest is the caller's contract.
        unsafe {
            (self.context.library().functions.cuLaunchKernel)(
                self.function,
                pages,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // A dead context takes its modules along.
        if self.context.enter_raw() == SUCCESS {
            // SAFETY: loaded by `load`; no stream that it was launched on is left.
            unsafe { (self.context.library().functions.cuModuleUnload)(self.module) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_for_older_devices_differs_in_each_of_its_places_once() {
        let new = text(9).into_string().unwrap();
        let old = text(6).into_string().unwrap();
        for (here, there) in OLDER {
            assert_eq!(new.matches(here).count(), 1, "{here}");
            assert!(old.contains(there), "{there}");
            // What is only added to is still there, as a part of what it became.
            assert_eq!(old.matches(here).count(), usize::from(there.contains(here)), "{here}");
        }
        assert_eq!(new, TEXT);
    }

    #[test]
    fn the_text_declares_the_parameter_that_is_passed() {
        let declared = format!(
            ".visible .entry {}(.param .align {} .b8 batch[{}])",
            NAME.to_str().unwrap(),
            align_of::<Batch>(),
            size_of::<Batch>()
        );
        assert_eq!(TEXT.matches(&declared).count(), 1, "{declared}");
        assert_eq!(std::mem::offset_of!(Batch, value), 8);
        assert_eq!(std::mem::offset_of!(Batch, moves), 16);
        assert_eq!(THREADS as usize * 16, crate::engine::units::PAGE_BYTES);
    }
}
