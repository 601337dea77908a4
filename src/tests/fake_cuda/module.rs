// SPDX-License-Identifier: MIT OR Apache-2.0
//! Modules, each with the one kernel there is.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::calls::{known, misused};
use crate::context::{ContextHandle, Current};
use crate::control::Word;
use crate::errors::{INVALID_HANDLE, OUT_OF_MEMORY, Outcome};

const MODULES: usize = 64;
const MODULE_MARK: u64 = 0x00d0 << 48;
/// A function's handle is its module's with this above it.
const FUNCTION_MARK: u64 = 0x0f00 << 48;

struct Module {
    /// Its handle; 0: none here.
    handle: AtomicU64,
    context: AtomicU64,
}

static PLACES: [Module; MODULES] =
    [const { Module { handle: AtomicU64::new(0), context: AtomicU64::new(0) } }; MODULES];
static GENERATION: AtomicU64 = AtomicU64::new(1);

/// `cuModuleLoadData`.
pub(crate) fn load(current: &Current) -> Outcome<u64> {
    for (place, module) in PLACES.iter().enumerate() {
        let handle = MODULE_MARK | GENERATION.fetch_add(1, Ordering::SeqCst) << 16 | place as u64;
        if module.handle.compare_exchange(0, handle, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            module.context.store(current.context, Ordering::SeqCst);
            known().add(Word::Modules, 1);
            return Ok(handle);
        }
    }
    Err(OUT_OF_MEMORY)
}

fn module(current: &Current, handle: u64) -> Outcome<&'static Module> {
    match PLACES.get((handle & 0xffff) as usize) {
        Some(module)
            if handle != 0
                && module.handle.load(Ordering::SeqCst) == handle
                && module.context.load(Ordering::SeqCst) == current.context =>
        {
            Ok(module)
        }
        _ => Err(misused(INVALID_HANDLE)),
    }
}

/// `cuModuleUnload`.
pub(crate) fn unload(current: &Current, handle: u64) -> Outcome {
    module(current, handle)?.handle.store(0, Ordering::SeqCst);
    known().less(Word::Modules);
    Ok(())
}

/// `cuModuleGetFunction`, of the right name.
pub(crate) fn function(current: &Current, handle: u64) -> Outcome<u64> {
    module(current, handle)?;
    Ok(handle | FUNCTION_MARK)
}

/// Whether a function can be launched in the context that is current.
pub(crate) fn is_function(current: &Current, function: u64) -> Outcome {
    if function & FUNCTION_MARK != FUNCTION_MARK {
        return Err(misused(INVALID_HANDLE));
    }
    module(current, function & !FUNCTION_MARK).map(|_| ())
}

/// A context's modules end with it.
pub(crate) fn end_of_context(context: ContextHandle) {
    for module in &PLACES {
        let handle = module.handle.load(Ordering::SeqCst);
        if handle != 0 && module.context.load(Ordering::SeqCst) == context {
            module.handle.store(0, Ordering::SeqCst);
            known().less(Word::Modules);
        }
    }
}
