// SPDX-License-Identifier: MIT OR Apache-2.0
//! Test builds only: the process's allocator functions, Rust's and C's alike,
//! end the process when an armed I/O thread calls them. Linked into the
//! executable, these definitions come before libc's for every library too.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;

unsafe extern "C" {
    fn __libc_malloc(bytes: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
    fn __libc_memalign(align: usize, bytes: usize) -> *mut c_void;
}

thread_local! {
    // Const-initialised and without a destructor: no allocation on first use.
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

/// From here on (or no longer) an allocation by this thread aborts.
pub fn arm(on: bool) {
    ARMED.set(on);
}

fn check() {
    if ARMED.get() {
        ARMED.set(false);
        let text = b"sluice: an armed I/O thread allocated\n";
        // SAFETY: a plain write of a constant; then the process ends.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::abort();
        }
    }
}

/// malloc(3).
///
/// # Safety
/// As malloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    check();
    // SAFETY: the caller's contract is libc's.
    unsafe { __libc_malloc(bytes) }
}

/// calloc(3).
///
/// # Safety
/// As calloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    check();
    // SAFETY: the caller's contract is libc's.
    unsafe { __libc_calloc(count, bytes) }
}

/// realloc(3).
///
/// # Safety
/// As realloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    check();
    // SAFETY: the caller's contract is libc's.
    unsafe { __libc_realloc(old, bytes) }
}

/// memalign(3), aligned_alloc(3).
///
/// # Safety
/// As aligned_alloc(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(align: usize, bytes: usize) -> *mut c_void {
    check();
    // SAFETY: the caller's contract is libc's.
    unsafe { __libc_memalign(align, bytes) }
}

/// posix_memalign(3).
///
/// # Safety
/// As posix_memalign(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(
    result: *mut *mut c_void,
    align: usize,
    bytes: usize,
) -> i32 {
    check();
    // SAFETY: the caller's contract is libc's; `result` is writable by it.
    unsafe {
        let memory = __libc_memalign(align, bytes);
        if memory.is_null() {
            return libc::ENOMEM;
        }
        result.write(memory);
    }
    0
}
