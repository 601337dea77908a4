// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between host memory and memory of the device that is mapped into this
//! process, by the CPU, with a landing for the fault of a device that is gone.
//!
//! Mapped device memory is write-combining: a plain load of it is one trip over
//! the bus for each few bytes, so reads use streaming loads, a whole line each;
//! writes use non-temporal stores, whole lines too, and are at the device only
//! after a store fence ([`fence`]). The widest routine that the processor has is
//! chosen at run time.
//!
//! A device that fell off the bus answers a mapping with SIGBUS. The handler here
//! looks only at the instruction pointer: inside a routine of this file it lets
//! the routine return with "failed", anywhere else it hands the signal on to
//! whoever had it before.

use std::sync::Once;

/// Copies `bytes`; 0 when all was copied, else a fault ended it.
type Routine = unsafe extern "C" fn(to: *mut u8, from: *const u8, bytes: usize) -> u32;

/// Bytes that both addresses and the length of a copy are multiples of.
pub const GRANULE: usize = 512;

/// The access to the memory ended in a fault: the device is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The routines that this processor runs best.
#[derive(Clone, Copy, Debug)]
pub struct Copier {
    store: Routine,
    load: Routine,
    name: &'static str,
}

impl Copier {
    /// Chooses the routines and puts the landing in place, once a process.
    /// `None`: there are none for this kind of processor.
    pub fn new() -> Option<Self> {
        let copier = routines().first().copied();
        if copier.is_some() {
            static LANDING: Once = Once::new();
            LANDING.call_once(landing::install);
        }
        copier
    }

    /// What was chosen, for the log.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Copies host memory into device memory. It is there after [`fence`].
    ///
    /// # Safety
    /// `to` is a mapping of device memory and `from` memory of this process, both
    /// `bytes` long, apart, and together with `bytes` multiples of [`GRANULE`].
    /// Nobody else writes either meanwhile.
    pub unsafe fn store(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Gone> {
        // SAFETY: as the caller's; a fault in it is caught.
        outcome(unsafe { (self.store)(to, from, bytes) })
    }

    /// Copies device memory into host memory.
    ///
    /// # Safety
    /// As [`Copier::store`], with the parts of `to` and `from` exchanged.
    pub unsafe fn load(&self, to: *mut u8, from: *const u8, bytes: usize) -> Result<(), Gone> {
        // SAFETY: as the caller's; a fault in it is caught.
        outcome(unsafe { (self.load)(to, from, bytes) })
    }
}

fn outcome(code: u32) -> Result<(), Gone> {
    if code == 0 { Ok(()) } else { Err(Gone) }
}

#[cfg(not(target_arch = "x86_64"))]
fn routines() -> Vec<Copier> {
    Vec::new()
}

/// Makes all stores before it visible to the device, and streaming loads after
/// it fetch anew: a line that one of them fetched earlier may be kept aside.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    unsafe {
        std::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Every set of routines that this processor has, best first.
#[cfg(target_arch = "x86_64")]
fn routines() -> Vec<Copier> {
    let mut found = Vec::new();
    if std::is_x86_feature_detected!("avx512f") {
        let (store, load) = (asm::sluice_copy_store_avx512, asm::sluice_copy_load_avx512);
        found.push(Copier { store, load, name: "AVX-512" });
    }
    if std::is_x86_feature_detected!("avx2") {
        let (store, load) = (asm::sluice_copy_store_avx2, asm::sluice_copy_load_avx2);
        found.push(Copier { store, load, name: "AVX2" });
    }
    let store = asm::sluice_copy_store_sse2;
    if std::is_x86_feature_detected!("sse4.1") {
        found.push(Copier { store, load: asm::sluice_copy_load_sse41, name: "SSE4.1" });
    }
    found.push(Copier { store, load: asm::sluice_copy_load_sse2, name: "SSE2, plain loads" });
    found
}

#[cfg(target_arch = "x86_64")]
mod asm {
    use std::arch::global_asm;

    // to: rdi, from: rsi, bytes: rdx, a multiple of 512; the answer in eax. No
    // stack is used, so that a landing needs only to return. The AVX-512 ones keep
    // to registers 16 and up, which need no cleaning for code that follows.
    global_asm!(
        ".pushsection .text.sluice_copy, \"ax\", @progbits",
        ".macro sluice_copy_name name",
        ".globl \\name",
        ".hidden \\name",
        ".type \\name, @function",
        ".p2align 4",
        "\\name:",
        ".endm",
        ".macro sluice_copy_next amount",
        "add rsi, \\amount",
        "add rdi, \\amount",
        "sub rdx, \\amount",
        ".endm",
        ".macro sluice_copy_eight load, store, register, width",
        "\\load \\register\\()0, [rsi + 0 * \\width]",
        "\\load \\register\\()1, [rsi + 1 * \\width]",
        "\\load \\register\\()2, [rsi + 2 * \\width]",
        "\\load \\register\\()3, [rsi + 3 * \\width]",
        "\\load \\register\\()4, [rsi + 4 * \\width]",
        "\\load \\register\\()5, [rsi + 5 * \\width]",
        "\\load \\register\\()6, [rsi + 6 * \\width]",
        "\\load \\register\\()7, [rsi + 7 * \\width]",
        "\\store [rdi + 0 * \\width], \\register\\()0",
        "\\store [rdi + 1 * \\width], \\register\\()1",
        "\\store [rdi + 2 * \\width], \\register\\()2",
        "\\store [rdi + 3 * \\width], \\register\\()3",
        "\\store [rdi + 4 * \\width], \\register\\()4",
        "\\store [rdi + 5 * \\width], \\register\\()5",
        "\\store [rdi + 6 * \\width], \\register\\()6",
        "\\store [rdi + 7 * \\width], \\register\\()7",
        "sluice_copy_next 8 * \\width",
        ".endm",
        // Registers 20 to 27, by the digit in front of the macro's own.
        "sluice_copy_name sluice_copy_plain_begin",
        "sluice_copy_name sluice_copy_store_avx512",
        "2: sluice_copy_eight vmovdqa64, vmovntdq, zmm2, 64",
        "jnz 2b",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_load_avx512",
        "2: sluice_copy_eight vmovntdqa, vmovdqa64, zmm2, 64",
        "jnz 2b",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_store_sse2",
        "2: sluice_copy_eight movdqa, movntdq, xmm, 16",
        "jnz 2b",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_load_sse41",
        "2: sluice_copy_eight movntdqa, movdqa, xmm, 16",
        "jnz 2b",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_load_sse2",
        "2: sluice_copy_eight movdqa, movdqa, xmm, 16",
        "jnz 2b",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_plain_end",
        "mov eax, 1",
        "ret",
        "sluice_copy_name sluice_copy_avx_begin",
        "sluice_copy_name sluice_copy_store_avx2",
        "2: sluice_copy_eight vmovdqa, vmovntdq, ymm, 32",
        "jnz 2b",
        "vzeroupper",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_load_avx2",
        "2: sluice_copy_eight vmovntdqa, vmovdqa, ymm, 32",
        "jnz 2b",
        "vzeroupper",
        "xor eax, eax",
        "ret",
        "sluice_copy_name sluice_copy_avx_end",
        "vzeroupper",
        "mov eax, 1",
        "ret",
        ".purgem sluice_copy_name",
        ".purgem sluice_copy_next",
        ".purgem sluice_copy_eight",
        ".popsection",
    );

    unsafe extern "C" {
        pub fn sluice_copy_store_avx512(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub fn sluice_copy_load_avx512(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub fn sluice_copy_store_avx2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub fn sluice_copy_load_avx2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub fn sluice_copy_store_sse2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub fn sluice_copy_load_sse41(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        pub fn sluice_copy_load_sse2(to: *mut u8, from: *const u8, bytes: usize) -> u32;
        fn sluice_copy_plain_begin();
        fn sluice_copy_plain_end();
        fn sluice_copy_avx_begin();
        fn sluice_copy_avx_end();
    }

    /// Where a routine goes on that faulted at `instruction`; `None`: it is none
    /// of ours. Each landing is the end of the range that it is for.
    pub fn landing_of(instruction: usize) -> Option<usize> {
        let ranges: [(unsafe extern "C" fn(), unsafe extern "C" fn()); 2] = [
            (sluice_copy_plain_begin, sluice_copy_plain_end),
            (sluice_copy_avx_begin, sluice_copy_avx_end),
        ];
        ranges
            .into_iter()
            .map(|(begin, end)| (begin as usize)..(end as usize))
            .find(|range| range.contains(&instruction))
            .map(|range| range.end)
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod landing {
    pub fn install() {}
}

#[cfg(target_arch = "x86_64")]
mod landing {
    use std::ffi::{c_int, c_void};
    use std::sync::OnceLock;

    use super::asm::landing_of;

    /// Who had the signal before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    /// Puts the handler in place. Everything it uses is there before it can run.
    pub fn install() {
        // SAFETY: plain numbers; all zeros is a valid value of it.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: stores into `before`, changes nothing.
        let asked = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut before) };
        assert_eq!(asked, 0, "the signal exists");
        BEFORE.get_or_init(|| before);
        // SAFETY: as above.
        let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
        ours.sa_sigaction = on_bus_error as *const () as usize;
        // On the thread's own signal stack, where it has one.
        ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler only reads and writes the context it is given and
        // a static, which is set.
        let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) };
        assert_eq!(done, 0, "the signal can be handled");
    }

    extern "C" fn on_bus_error(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let thread = context.cast::<libc::ucontext_t>();
        // SAFETY: the kernel gives a handler with SA_SIGINFO the interrupted
        // thread's state, which is ours until we return.
        let pointer = unsafe { &mut (*thread).uc_mcontext.gregs[libc::REG_RIP as usize] };
        if let Some(landing) = landing_of(pointer.cast_unsigned() as usize) {
            *pointer = landing as i64;
            return;
        }
        hand_on(signal, info, context);
    }

    fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
        let Some(before) = BEFORE.get() else { return };
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => {
                // SAFETY: from here on as if we had never been there: the access
                // faults again and ends the process.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the flag says that it is a function of this type.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: without the flag it is a function of this type.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::os::fd::OwnedFd;

    const BYTES: usize = 8 << 12;

    /// Shared memory that can be taken away from under its mapping.
    struct Mapped {
        memory: OwnedFd,
        base: *mut u8,
    }

    impl Mapped {
        fn new() -> Self {
            let memory = memfd_create("copies", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&memory, BYTES as u64).unwrap();
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            let base =
                unsafe { mmap(std::ptr::null_mut(), BYTES, access, MapFlags::SHARED, &memory, 0) };
            Self { memory, base: base.unwrap().cast() }
        }

        fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: mapped above, whole while no test truncates it.
            unsafe { std::slice::from_raw_parts_mut(self.base, BYTES) }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: mapped by `new`.
            unsafe { munmap(self.base.cast(), BYTES) }.unwrap();
        }
    }

    fn all() -> Vec<Copier> {
        Copier::new().unwrap();
        routines()
    }

    #[test]
    fn every_routine_copies_just_what_it_was_asked_to() {
        for copier in all() {
            for (at, bytes) in [(0, BYTES), (4096, 4096), (512, 512), (8192, 3 * 512)] {
                let (mut host, mut device) = (Mapped::new(), Mapped::new());
                for (n, byte) in host.bytes().iter_mut().enumerate() {
                    *byte = (n * 7 + n / 256) as u8;
                }
                device.bytes().fill(0xee);
                // SAFETY: inside both mappings, in multiples of 512.
                let stored = unsafe { copier.store(device.base.add(at), host.base.add(at), bytes) };
                fence();
                assert_eq!(stored, Ok(()), "{}", copier.name());
                let expected: Vec<u8> = (0..BYTES)
                    .map(|n| if (at..at + bytes).contains(&n) { host.bytes()[n] } else { 0xee })
                    .collect();
                assert_eq!(device.bytes(), expected, "{} stores", copier.name());
                let mut back = Mapped::new();
                back.bytes().fill(0xee);
                // SAFETY: as above.
                let loaded = unsafe { copier.load(back.base.add(at), device.base.add(at), bytes) };
                assert_eq!(loaded, Ok(()), "{}", copier.name());
                assert_eq!(back.bytes(), expected, "{} loads", copier.name());
            }
        }
    }

    #[test]
    fn memory_that_goes_away_ends_a_copy_and_not_the_process() {
        for copier in all() {
            let (mut host, device) = (Mapped::new(), Mapped::new());
            host.bytes().fill(1);
            // The second half is gone: a copy faults in its middle.
            ftruncate(&device.memory, BYTES as u64 / 2).unwrap();
            for _ in 0..3 {
                // SAFETY: both mappings are there; behind one is no memory.
                let (stored, loaded) = unsafe {
                    (
                        copier.store(device.base, host.base, BYTES),
                        copier.load(host.base, device.base, BYTES),
                    )
                };
                assert_eq!((stored, loaded), (Err(Gone), Err(Gone)), "{}", copier.name());
            }
            // What is still there is still served.
            // SAFETY: as above.
            let stored = unsafe { copier.store(device.base, host.base, BYTES / 2) };
            assert_eq!(stored, Ok(()), "{}", copier.name());
        }
    }

    #[test]
    fn a_fault_elsewhere_still_ends_the_process() {
        use std::os::unix::process::ExitStatusExt;
        const PART: &str = "SLUICE_TEST_FAULT";
        const NAME: &str = "tier::vulkan::copy::tests::a_fault_elsewhere_still_ends_the_process";
        if std::env::var_os(PART).is_some() {
            let _ = all();
            let device = Mapped::new();
            ftruncate(&device.memory, 0).unwrap();
            // SAFETY: the mapping is there; the fault is what is tested.
            unsafe { device.base.write_volatile(1) };
            unreachable!("the write above does not return");
        }
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(PART, "1")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }
}
