// SPDX-License-Identifier: MIT OR Apache-2.0
//! A CUDA driver library without a GPU, installed under the name
//! `libcuda.so.1`: device memory is host memory, and everything a program can
//! do wrong, or a driver can do to a program, is made to show.
//!
//! What it is strict about, where a real driver might happen to forgive:
//! - Asynchronous copies are queued. They move data only when their stream is
//!   driven (a query or a synchronisation), after as many not-ready answers as
//!   the control file says: a buffer that is used too early is really wrong.
//! - A copy that meets device memory which is not mapped, or without access, or
//!   host memory that was unregistered meanwhile, fails with 700, and from then
//!   on every call on that device does.
//! - Host memory of an asynchronous copy must be registered (else 1), the
//!   context current on the calling thread (else 201) and that of the stream
//!   (else 400).
//! - Memory handles are memfds: an exported descriptor keeps the contents by
//!   itself, whatever becomes of the exporter.
//!
//! - Of kernels there is one, the copy kernel of the CUDA tier, known by its name:
//!   what it is launched with is checked, and then each page is a copy as above,
//!   subject to the same faults. Its words, like those that a stream writes, come
//!   only when the stream is driven.
//!
//! After its stream was made and the context was made current on a thread, a
//! copy, launch, record or query allocates nothing; nothing is ever logged.
//!
//! Not modelled: other kernels, graphs, pools, peer access, and memory used by other
//! processes that have opened the same fake (each counts its own and what
//! [`control::Word::Others0`] and its neighbours say). Its NVML counts all processes.

mod api;
mod api_copy;
mod api_device;
mod api_kernel;
mod api_memory;
mod api_nvml;
mod calls;
mod context;
pub mod control;
mod errors;
mod memory;
mod module;
mod stream;

pub use api::*;
pub use api_copy::*;
pub use api_device::*;
pub use api_kernel::*;
pub use api_memory::*;
pub use api_nvml::*;
pub use calls::{CALLS, Call};
