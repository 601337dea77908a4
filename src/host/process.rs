// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other processes by descriptor, and starting one without memory: for the
//! parent that must bring the store back when none is free.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::ptr::null;

use rustix::io::{Errno, Result};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

/// A process that cannot be mistaken for another, whatever its number becomes.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    handle: OwnedFd,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It was not our child, so nobody told us.
    Unknown,
}

impl Process {
    /// A process that runs now. `SRCH`: there is none of this number.
    pub fn open(pid: u32) -> Result<Self> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        Ok(Self { pid, handle: rustix::process::pidfd_open(number, PidfdFlags::empty())? })
    }

    /// Sends it a signal, if it still runs.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        rustix::process::pidfd_send_signal(&self.handle, signal)
    }

    /// Takes note of its end, which its descriptor being readable announced.
    pub fn reap(&self) -> Ended {
        match rustix::process::waitid(WaitId::PidFd(self.as_fd()), WaitIdOptions::EXITED) {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ended::Exited(code),
                (None, Some(signal)) => Ended::Killed(signal),
                (None, None) => Ended::Unknown,
            },
            _ => Ended::Unknown,
        }
    }
}

impl AsFd for Process {
    /// Readable when the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// Stack of the child until it executes its program.
const STACK_BYTES: usize = 32 << 10;
/// Room for `/proc/self/fd/` and a number.
const NUMBER_BYTES: usize = 32;

/// A program with its arguments and environment, ready to be started again and
/// again without allocating.
pub struct Program {
    path: CString,
    arguments: Vec<CString>,
    _environment: Vec<CString>,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    stack: Vec<u8>,
}

/// What is executed.
#[derive(Clone, Copy)]
pub enum Image<'fd> {
    /// What is at the program's path now.
    AtPath,
    /// An open executable file.
    Open(BorrowedFd<'fd>),
}

/// What the child needs, on its parent's stack.
struct Start {
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    passed: c_int,
    failure: c_int,
}

impl Program {
    /// `arguments` begin with the name that the program is called by. One that is
    /// [`Program::PASSED`] is replaced by the number of the descriptor passed. The
    /// environment is that of this process. `None`: a NUL in one of the texts.
    #[must_use]
    pub fn new(path: OsString, arguments: Vec<OsString>) -> Option<Self> {
        let text = |text: OsString| CString::new(text.into_vec()).ok();
        let arguments: Vec<CString> =
            arguments.into_iter().map(text).collect::<Option<Vec<_>>>()?;
        let environment = std::env::vars_os()
            .map(|(mut variable, value)| {
                variable.push("=");
                variable.push(value);
                text(variable)
            })
            .collect::<Option<Vec<_>>>()?;
        let pointers = |texts: &[CString]| {
            texts.iter().map(|text| text.as_ptr()).chain([null()]).collect::<Vec<_>>()
        };
        Some(Self {
            path: text(path)?,
            argv: pointers(&arguments),
            envp: pointers(&environment),
            arguments,
            _environment: environment,
            stack: vec![0; STACK_BYTES],
        })
    }

    /// Stands for the number of the descriptor that is passed.
    pub const PASSED: &'static str = "\u{1}passed";

    /// Starts the program with one descriptor more than the standard three, and
    /// gives its process once it executes. The calling thread waits until then;
    /// no memory is copied and none allocated in this process.
    ///
    /// The child has no signal blocked. Everything else it inherits.
    pub fn start(&mut self, image: Image<'_>, passed: BorrowedFd<'_>) -> Result<Process> {
        let mut number = [0u8; NUMBER_BYTES];
        let number = c_text(&mut number, b"", passed.as_raw_fd());
        let mut place = [0u8; NUMBER_BYTES];
        let path = match image {
            Image::AtPath => self.path.as_ptr(),
            Image::Open(file) => c_text(&mut place, b"/proc/self/fd/", file.as_raw_fd()),
        };
        for (pointer, argument) in self.argv.iter_mut().zip(&self.arguments) {
            let replaced = argument.as_bytes() == Self::PASSED.as_bytes();
            *pointer = if replaced { number } else { argument.as_ptr() };
        }
        let mut start = Start {
            path,
            argv: self.argv.as_ptr(),
            envp: self.envp.as_ptr(),
            passed: passed.as_raw_fd(),
            failure: 0,
        };
        let mut handle: c_int = -1;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD;
        // The stack grows down; its end is aligned as the ABI wants it.
        let top = self.stack.as_mut_ptr_range().end;
        // SAFETY: the child runs `child` on a stack of its own that outlives it,
        // for this thread stands still (CLONE_VFORK) until the child executes or
        // ends. `start` and `handle` live on this thread's stack meanwhile.
        let pid = unsafe {
            let top = top.sub(top as usize % 16);
            let argument = (&raw mut start).cast::<c_void>();
            libc::clone(child, top.cast(), flags, argument, &raw mut handle)
        };
        if pid < 0 {
            return Err(last_errno());
        }
        // SAFETY: CLONE_PIDFD stored a new descriptor, ours alone.
        let handle = unsafe { OwnedFd::from_raw_fd(handle) };
        let process = Process { pid: pid.cast_unsigned(), handle };
        if start.failure != 0 {
            process.reap();
            return Err(Errno::from_raw_os_error(start.failure));
        }
        Ok(process)
    }

    /// The path of [`Image::AtPath`].
    #[must_use]
    pub fn path(&self) -> &CStr {
        &self.path
    }
}

/// The child until it executes: shares all memory with its parent, so it calls
/// the system and nothing else.
extern "C" fn child(start: *mut c_void) -> c_int {
    let start = start.cast::<Start>();
    // SAFETY: `start` is the parent's, which waits. The calls are plain system
    // calls on this process's own copy of its descriptors. The signal mask stays
    // the parent's: what comes before the program listens waits for it.
    unsafe {
        if libc::fcntl((*start).passed, libc::F_SETFD, 0) == 0 {
            libc::execve((*start).path, (*start).argv, (*start).envp);
        }
        (*start).failure = *libc::__errno_location();
        libc::_exit(127)
    }
}

/// `prefix` and `number` as a C text in `room`.
fn c_text(room: &mut [u8; NUMBER_BYTES], prefix: &[u8], number: c_int) -> *const c_char {
    let mut digits = [0u8; 12];
    let mut count = 0;
    let mut left = number.unsigned_abs();
    loop {
        digits[count] = b'0' + (left % 10) as u8;
        (left, count) = (left / 10, count + 1);
        if left == 0 {
            break;
        }
    }
    room[..prefix.len()].copy_from_slice(prefix);
    for (to, digit) in room[prefix.len()..].iter_mut().zip(digits[..count].iter().rev()) {
        *to = *digit;
    }
    room[prefix.len() + count] = 0;
    room.as_ptr().cast()
}

fn last_errno() -> Errno {
    // SAFETY: the calling thread's own errno.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::handover;

    fn shell(script: &str) -> Program {
        let words = ["sh", "-c", script, "sh", Program::PASSED].map(OsString::from);
        Program::new("/bin/sh".into(), words.into()).unwrap()
    }

    fn ended(process: &Process) -> Ended {
        handover::wait_readable(process.as_fd(), std::time::Duration::from_secs(60)).unwrap();
        process.reap()
    }

    #[test]
    fn a_program_is_started_again_and_again_with_one_descriptor_passed() {
        let mut program = shell("printf %s \"$1\" >&$1; exit 7");
        for _ in 0..3 {
            let (ours, theirs) = handover::pair().unwrap();
            let process = program.start(Image::AtPath, theirs.as_fd()).unwrap();
            assert_eq!(ended(&process), Ended::Exited(7));
            let mut record = [0; 8];
            let (bytes, _) = handover::receive(ours.as_fd(), &mut record).unwrap();
            assert_eq!(record[..bytes], *theirs.as_raw_fd().to_string().as_bytes());
        }
    }

    #[test]
    fn an_open_executable_is_started_without_its_path() {
        let mut program = shell("exit 3");
        let file = std::fs::File::open("/bin/sh").unwrap();
        program.path = c"/no/such/program".to_owned();
        let (_ours, theirs) = handover::pair().unwrap();
        let process = program.start(Image::Open(file.as_fd()), theirs.as_fd()).unwrap();
        assert_eq!(ended(&process), Ended::Exited(3));
        let error = program.start(Image::AtPath, theirs.as_fd()).unwrap_err();
        assert_eq!(error, Errno::NOENT);
    }

    #[test]
    fn a_child_that_is_killed_says_so_and_a_stranger_says_nothing() {
        let mut program = shell("kill -KILL $$");
        let (_ours, theirs) = handover::pair().unwrap();
        let process = program.start(Image::AtPath, theirs.as_fd()).unwrap();
        assert_eq!(ended(&process), Ended::Killed(libc::SIGKILL));
        assert_eq!(process.reap(), Ended::Unknown);
        assert_eq!(process.signal(Signal::TERM).unwrap_err(), Errno::SRCH);
        assert_eq!(Process::open(0).unwrap_err(), Errno::SRCH);
        assert_eq!(Process::open(std::process::id()).unwrap().reap(), Ended::Unknown);
    }

    #[test]
    fn numbers_are_written_as_people_read_them() {
        for number in [0, 7, 10, 65535, c_int::MAX] {
            let mut room = [0; NUMBER_BYTES];
            let text = c_text(&mut room, b"fd/", number);
            // SAFETY: ended by a NUL within `room`, which lives here.
            let text = unsafe { CStr::from_ptr(text) };
            assert_eq!(text.to_str().unwrap(), format!("fd/{number}"));
        }
    }
}
