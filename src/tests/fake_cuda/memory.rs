// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory: handles (memfds), reserved addresses, what is mapped where and who
//! may touch it, and the host memory that is registered.
//!
//! ```text
//!   handle ──(map)──► mapping ◄──(lies in)── reservation
//!     memfd             address, host view, devices with access
//! ```
//! A handle that was released lives on while it is mapped. Lists change under
//! the write lock, on threads that may allocate; copies read them.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls::{known, misused};
use crate::context::ContextHandle;
use crate::control::{MAX_DEVICES, Word};
use crate::errors::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, ILLEGAL_ADDRESS, INVALID_VALUE,
    OPERATING_SYSTEM, OUT_OF_MEMORY, Outcome,
};

/// The unit of device memory: what a real card answers.
pub(crate) const GRANULARITY: u64 = 2 << 20;
/// Device addresses begin here: nothing of the host is there, so a device
/// address that is used as a pointer ends the program.
const FIRST_ADDRESS: u64 = 0x0000_0d00_0000_0000;
/// What the device's address of registered host memory has above the host's: a
/// pointer of the one kind that is used as the other ends the program.
const SEEN_FROM_DEVICE: u64 = 0x0b00_0000_0000_0000;
/// What a memfd of ours is called; the device's number follows.
pub(crate) const NAME: &str = "sluice-fake-vram:";

struct Memory {
    id: u64,
    fd: OwnedFd,
    device: usize,
    bytes: u64,
    /// By `cuMemCreate` or an import, until `cuMemRelease`.
    held: u32,
    mapped: u32,
}

struct Mapping {
    address: u64,
    bytes: u64,
    memory: u64,
    /// Where the host sees it.
    view: usize,
    /// Devices that may read and write it.
    access: u32,
}

struct Registered {
    address: usize,
    bytes: usize,
    context: ContextHandle,
    /// For every context, not only its own.
    portable: bool,
    /// By `cuMemAllocHost`: unmapped with it.
    ours: bool,
}

impl Registered {
    fn covers(&self, host: usize, bytes: usize, context: ContextHandle) -> bool {
        host >= self.address
            && host + bytes <= self.address + self.bytes
            && (self.portable || self.context == context)
    }
}

struct Lists {
    memories: Vec<Memory>,
    mappings: Vec<Mapping>,
    reservations: Vec<(u64, u64)>,
    registered: Vec<Registered>,
    next_id: u64,
    next_address: u64,
}

static LISTS: RwLock<Lists> = RwLock::new(Lists {
    memories: Vec::new(),
    mappings: Vec::new(),
    reservations: Vec::new(),
    registered: Vec::new(),
    next_id: 1,
    next_address: FIRST_ADDRESS,
});

fn read() -> std::sync::RwLockReadGuard<'static, Lists> {
    LISTS.read().expect("no panic under this lock")
}

fn write() -> std::sync::RwLockWriteGuard<'static, Lists> {
    LISTS.write().expect("no panic under this lock")
}

fn wrong<T>() -> Outcome<T> {
    Err(misused(INVALID_VALUE))
}

fn taken(lists: &Lists, device: usize) -> u64 {
    lists.memories.iter().filter(|m| m.device == device).map(|m| m.bytes).sum()
}

/// Free and all bytes of a device.
pub(crate) fn free_and_total(device: usize) -> (u64, u64) {
    let control = known();
    let total = control.get(Word::DeviceBytes);
    let used = taken(&read(), device).saturating_add(control.others(device));
    (total.saturating_sub(used), total)
}

/// `cuMemCreate`.
pub(crate) fn create(device: usize, bytes: u64) -> Outcome<u64> {
    if bytes == 0 || !bytes.is_multiple_of(GRANULARITY) {
        return wrong();
    }
    let mut lists = write();
    let control = known();
    let used = taken(&lists, device).saturating_add(control.others(device));
    if used.saturating_add(bytes) > control.get(Word::DeviceBytes) {
        return Err(OUT_OF_MEMORY);
    }
    let name = std::ffi::CString::new(format!("{NAME}{device}")).expect("no NUL in it");
    // SAFETY: a terminated name; the descriptor is checked and then owned.
    let fd = unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC);
        if fd < 0 || libc::ftruncate(fd, bytes as libc::off_t) != 0 {
            return Err(OPERATING_SYSTEM);
        }
        OwnedFd::from_raw_fd(fd)
    };
    Ok(adopt(&mut lists, fd, device, bytes))
}

fn adopt(lists: &mut Lists, fd: OwnedFd, device: usize, bytes: u64) -> u64 {
    let id = lists.next_id;
    lists.next_id += 1;
    lists.memories.push(Memory { id, fd, device, bytes, held: 1, mapped: 0 });
    known().add(Word::Handles, 1);
    id
}

fn memory(lists: &mut Lists, id: u64) -> Outcome<&mut Memory> {
    match lists.memories.iter_mut().find(|m| m.id == id) {
        Some(memory) => Ok(memory),
        None => wrong(),
    }
}

/// Frees what is neither held nor mapped.
fn sweep(lists: &mut Lists) {
    lists.memories.retain(|m| m.held > 0 || m.mapped > 0);
}

/// `cuMemRelease`.
pub(crate) fn release(id: u64) -> Outcome {
    let mut lists = write();
    let memory = memory(&mut lists, id)?;
    if memory.held == 0 {
        return wrong();
    }
    memory.held -= 1;
    known().less(Word::Handles);
    sweep(&mut lists);
    Ok(())
}

/// The device whose memory a handle is.
pub(crate) fn device_of(id: u64) -> Outcome<usize> {
    memory(&mut write(), id).map(|memory| memory.device)
}

/// The device that a mapped or reserved address has memory of, if any.
pub(crate) fn device_at(address: u64) -> Option<usize> {
    let lists = read();
    let mapping = lists.mappings.iter().find(|m| m.address == address)?;
    lists.memories.iter().find(|m| m.id == mapping.memory).map(|m| m.device)
}

/// `cuMemExportToShareableHandle`: a descriptor of the caller's own.
pub(crate) fn export(id: u64) -> Outcome<i32> {
    let mut lists = write();
    let memory = memory(&mut lists, id)?;
    // SAFETY: duplicates a descriptor that is open.
    let fd = unsafe { libc::fcntl(memory.fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) };
    if fd < 0 { Err(OPERATING_SYSTEM) } else { Ok(fd) }
}

/// `cuMemImportFromShareableHandle`: the caller keeps its descriptor.
pub(crate) fn import(fd: i32) -> Outcome<u64> {
    let Ok(link) = std::fs::read_link(format!("/proc/self/fd/{fd}")) else {
        return wrong();
    };
    let link = link.to_string_lossy().into_owned();
    let device = link.strip_prefix("/memfd:").and_then(|rest| rest.strip_prefix(NAME));
    let Some(device) = device.and_then(|rest| rest.trim_end_matches(" (deleted)").parse().ok())
    else {
        return wrong();
    };
    if device >= known().devices() {
        return wrong();
    }
    // SAFETY: a descriptor that /proc has just shown to be open; results are checked.
    let (copy, bytes) = unsafe {
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3);
        let bytes = libc::lseek(copy, 0, libc::SEEK_END);
        if copy < 0 || bytes <= 0 {
            return Err(OPERATING_SYSTEM);
        }
        (OwnedFd::from_raw_fd(copy), bytes.cast_unsigned())
    };
    Ok(adopt(&mut write(), copy, device, bytes))
}

/// `cuMemAddressReserve`.
pub(crate) fn reserve(bytes: u64, alignment: u64) -> Outcome<u64> {
    let fits = bytes > 0 && bytes.is_multiple_of(GRANULARITY);
    if !fits || (alignment != 0 && !alignment.is_power_of_two()) {
        return wrong();
    }
    let mut lists = write();
    let address = lists.next_address.next_multiple_of(alignment.max(GRANULARITY));
    // A gap after each range: the neighbour of a range is nobody's.
    lists.next_address = address + bytes + GRANULARITY;
    lists.reservations.push((address, bytes));
    known().add(Word::Reservations, 1);
    Ok(address)
}

/// Bytes of the reservation that begins at an address.
pub(crate) fn reserved_at(address: u64) -> Outcome<u64> {
    match read().reservations.iter().find(|(at, _)| *at == address) {
        Some((_, bytes)) => Ok(*bytes),
        None => wrong(),
    }
}

/// `cuMemAddressFree`: exactly what was reserved, with nothing mapped in it.
pub(crate) fn unreserve(address: u64, bytes: u64) -> Outcome {
    let mut lists = write();
    let inside = |m: &Mapping| m.address >= address && m.address < address + bytes;
    let Some(at) = lists.reservations.iter().position(|r| *r == (address, bytes)) else {
        return wrong();
    };
    if lists.mappings.iter().any(inside) {
        return wrong();
    }
    lists.reservations.swap_remove(at);
    known().less(Word::Reservations);
    Ok(())
}

/// `cuMemMap`: a whole handle into a reserved range that is empty there.
pub(crate) fn map(address: u64, bytes: u64, id: u64) -> Outcome {
    let mut lists = write();
    let end = address.saturating_add(bytes);
    let reserved = lists.reservations.iter().any(|(at, len)| address >= *at && end <= at + len);
    let occupied = lists.mappings.iter().any(|m| address < m.address + m.bytes && m.address < end);
    let memory = memory(&mut lists, id)?;
    if !reserved || occupied || memory.held == 0 || memory.bytes != bytes {
        return wrong();
    }
    // SAFETY: a new mapping of a memfd of that length.
    let view = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            memory.fd.as_raw_fd(),
            0,
        )
    };
    if view == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    memory.mapped += 1;
    let at = lists.mappings.partition_point(|m| m.address < address);
    let mapping = Mapping { address, bytes, memory: id, view: view as usize, access: 0 };
    lists.mappings.insert(at, mapping);
    known().add(Word::Mappings, 1);
    Ok(())
}

/// `cuMemUnmap`: whole mappings only.
pub(crate) fn unmap(address: u64, bytes: u64) -> Outcome {
    let mut lists = write();
    let Some(at) = lists.mappings.iter().position(|m| (m.address, m.bytes) == (address, bytes))
    else {
        return wrong();
    };
    let mapping = lists.mappings.remove(at);
    // SAFETY: our own mapping, which nobody finds any more.
    unsafe { libc::munmap(mapping.view as *mut libc::c_void, bytes as usize) };
    memory(&mut lists, mapping.memory).expect("it lives while it is mapped").mapped -= 1;
    known().less(Word::Mappings);
    sweep(&mut lists);
    Ok(())
}

/// `cuMemSetAccess` for whole mappings.
pub(crate) fn set_access(address: u64, bytes: u64, device: usize, allowed: bool) -> Outcome {
    let mut lists = write();
    let end = address.saturating_add(bytes);
    let inside = |m: &&mut Mapping| m.address >= address && m.address + m.bytes <= end;
    let mut covered = 0;
    for mapping in lists.mappings.iter_mut().filter(inside) {
        covered += mapping.bytes;
        let bit = 1_u32 << device;
        mapping.access = if allowed { mapping.access | bit } else { mapping.access & !bit };
    }
    if covered == bytes && bytes > 0 { Ok(()) } else { wrong() }
}

/// `cuMemHostRegister`.
pub(crate) fn register(
    address: usize,
    bytes: usize,
    context: ContextHandle,
    portable: bool,
) -> Outcome {
    if address == 0 || bytes == 0 {
        return wrong();
    }
    let mut lists = write();
    let overlaps = |r: &Registered| address < r.address + r.bytes && r.address < address + bytes;
    if lists.registered.iter().any(overlaps) {
        return Err(misused(HOST_MEMORY_ALREADY_REGISTERED));
    }
    lists.registered.push(Registered { address, bytes, context, portable, ours: false });
    known().add(Word::Registrations, 1);
    Ok(())
}

/// `cuMemHostUnregister`.
pub(crate) fn unregister(address: usize) -> Outcome {
    let mut lists = write();
    let Some(at) = lists.registered.iter().position(|r| r.address == address && !r.ours) else {
        return Err(misused(HOST_MEMORY_NOT_REGISTERED));
    };
    lists.registered.swap_remove(at);
    known().less(Word::Registrations);
    Ok(())
}

/// `cuMemAllocHost`.
pub(crate) fn alloc_host(bytes: usize, context: ContextHandle) -> Outcome<usize> {
    // SAFETY: a new anonymous mapping.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let address = base as usize;
    write().registered.push(Registered { address, bytes, context, portable: true, ours: true });
    known().add(Word::Registrations, 1);
    Ok(address)
}

/// `cuMemFreeHost`.
pub(crate) fn free_host(address: usize) -> Outcome {
    let mut lists = write();
    let Some(at) = lists.registered.iter().position(|r| r.address == address && r.ours) else {
        return wrong();
    };
    let gone = lists.registered.swap_remove(at);
    // SAFETY: our own mapping, which nobody finds any more.
    unsafe { libc::munmap(gone.address as *mut libc::c_void, gone.bytes) };
    known().less(Word::Registrations);
    Ok(())
}

/// A context's registrations end with it. Memory of `cuMemAllocHost` stays
/// mapped: its owner may still look at it.
pub(crate) fn end_of_context(context: ContextHandle) {
    let mut lists = write();
    let before = lists.registered.len();
    lists.registered.retain(|r| r.context != context);
    for _ in lists.registered.len()..before {
        known().less(Word::Registrations);
    }
}

/// Whether all of a range of host memory is registered for a context.
pub(crate) fn is_registered(host: usize, bytes: usize, context: ContextHandle) -> bool {
    read().registered.iter().any(|r| r.covers(host, bytes, context))
}

/// `cuMemHostGetDevicePointer`.
pub(crate) fn seen_from_device(host: usize, context: ContextHandle) -> Outcome<u64> {
    if is_registered(host, 1, context) { Ok(SEEN_FROM_DEVICE | host as u64) } else { wrong() }
}

/// The host's address of what a kernel sees at `address`, if it is the host's.
pub(crate) fn on_host(address: u64) -> Option<usize> {
    const KINDS: u64 = 0xff << 56;
    (address & KINDS == SEEN_FROM_DEVICE).then_some((address & !KINDS) as usize)
}

/// Writes `count` words of host memory, as the device does at a batch's end.
pub(crate) fn write_words(
    host: usize,
    count: usize,
    value: u32,
    context: ContextHandle,
) -> Outcome {
    let lists = read();
    if !lists.registered.iter().any(|r| r.covers(host, count * 4, context)) {
        return Err(misused(ILLEGAL_ADDRESS));
    }
    for n in 0..count {
        // SAFETY: registered, so mapped; aligned, as was checked at the call.
        let word = unsafe { AtomicU32::from_ptr((host as *mut u32).add(n)) };
        word.store(value, Ordering::Release);
    }
    Ok(())
}

/// One transfer.
#[derive(Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) device: usize,
    pub(crate) context: ContextHandle,
    pub(crate) to_device: bool,
    pub(crate) address: u64,
    pub(crate) host: usize,
    pub(crate) bytes: usize,
    /// Host memory must be registered.
    pub(crate) pinned: bool,
    /// Flip a byte of what arrives.
    pub(crate) spoiled: bool,
}

/// Moves the data, or touches nothing and gives 700.
pub(crate) fn perform(transfer: &Transfer) -> Outcome {
    let lists = read();
    let Transfer { device, address, host, bytes, .. } = *transfer;
    assert!(device < MAX_DEVICES);
    let illegal = || Err(misused(ILLEGAL_ADDRESS));
    let covered = |r: &Registered| r.covers(host, bytes, transfer.context);
    if transfer.pinned && !lists.registered.iter().any(covered) {
        return illegal();
    }
    let first = lists.mappings.partition_point(|m| m.address + m.bytes <= address);
    let pieces = || {
        let mut at = address;
        lists.mappings[first..].iter().map_while(move |m| {
            let left = address + bytes as u64 - at;
            let usable = left > 0 && m.address <= at && m.access & (1 << device) != 0;
            usable.then(|| {
                let here = left.min(m.address + m.bytes - at);
                let piece =
                    (m.view + (at - m.address) as usize, (at - address) as usize, here as usize);
                at += here;
                piece
            })
        })
    };
    if pieces().map(|(_, _, len)| len).sum::<usize>() != bytes {
        return illegal();
    }
    for (view, done, len) in pieces() {
        let host = host + done;
        // SAFETY: the view is mapped for that length while the lists are held,
        // and the host range was registered or given by the caller of a
        // synchronous copy. Others may write it meanwhile, as with a real card.
        unsafe {
            if transfer.to_device {
                libc::memcpy(view as *mut libc::c_void, host as *const libc::c_void, len);
            } else {
                libc::memcpy(host as *mut libc::c_void, view as *const libc::c_void, len);
            }
            if transfer.spoiled && done == 0 {
                let at = if transfer.to_device { view } else { host } + len / 2;
                let byte = at as *mut u8;
                byte.write_volatile(byte.read_volatile() ^ 0x20);
            }
        }
    }
    Ok(())
}
