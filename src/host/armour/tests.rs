// SPDX-License-Identifier: MIT OR Apache-2.0
//! Each protection: where it can be had, that it holds; everywhere, that its
//! refusal is told with the next step.

use super::*;
use crate::host::tests_support::{PROCESS, tree, without};
use rustix::thread::CapabilitySet;
use std::path::PathBuf;
use std::sync::PoisonError;

fn live() -> PathBuf {
    PathBuf::from("/")
}

const STATUS: &str = "Name:\tsluice-store\nVmPeak:\t  999 kB\nVmLck:\t  4096 kB\nVmPin:\t  512 kB\n\
                      VmRSS:\t  3072 kB\nRssAnon:\t  2048 kB\nVmSwap:\t  0 kB\n";

#[test]
fn locked_memory_is_read_from_the_status_file() {
    let root = tree(&[("proc/self/status", STATUS)]);
    assert_eq!(
        verify_locked_memory(root.path()).unwrap(),
        LockedMemory {
            locked: ByteLen(4 << 20),
            anonymous: ByteLen(2 << 20),
            swapped: ByteLen(0),
            resident: ByteLen(3 << 20),
            pinned: ByteLen(512 << 10),
        }
    );
}

#[test]
fn a_process_with_memory_in_swap_is_refused() {
    let root = tree(&[("proc/self/status", &STATUS.replace("VmSwap:\t  0", "VmSwap:\t  8"))]);
    let error = verify_locked_memory(root.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().starts_with("8 KiB"), "{error}");
    assert!(error.hint().unwrap().contains("MemorySwapMax=0"));
}

#[test]
fn a_process_with_less_locked_than_it_has_is_refused() {
    let root = tree(&[("proc/self/status", &STATUS.replace("VmLck:\t  4096", "VmLck:\t  0"))]);
    let error = verify_locked_memory(root.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains("0 B of 2 MiB"), "{error}");
}

#[test]
fn a_status_that_does_not_parse_is_an_error_and_never_a_zero() {
    for (from, to) in [("VmLck:", "VmLock:"), ("4096 kB", "4096 MB"), ("2048 kB", "many kB")] {
        let root = tree(&[("proc/self/status", &STATUS.replace(from, to))]);
        let error = verify_locked_memory(root.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::Protocol, "{to}");
    }
    let empty = tree(&[]);
    assert_eq!(verify_locked_memory(empty.path()).unwrap_err().kind(), Kind::Missing);
}

#[test]
fn locking_everything_holds_or_says_what_to_raise() {
    let _alone = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
    match lock_all_memory(&live()) {
        Ok(memory) => {
            assert!(memory.locked >= memory.anonymous && memory.locked > ByteLen(0), "{memory:?}");
            rustix::mm::munlockall().unwrap();
            let error = verify_locked_memory(&live()).unwrap_err();
            assert_eq!(error.kind(), Kind::Denied, "unlocked again: {error}");
        }
        Err(error) => assert!(error.hint().unwrap().contains("LimitMEMLOCK"), "{error}"),
    }
}

#[test]
fn locking_everything_is_refused_without_the_capability_and_the_limit() {
    without(CapabilitySet::IPC_LOCK, || {
        let error = lock_all_memory(&live()).unwrap_err();
        assert!(matches!(error.kind(), Kind::Denied | Kind::NoSpace), "{error:?}");
        assert!(error.to_string().contains("RLIMIT_MEMLOCK is 64 KiB"), "{error}");
        assert!(error.hint().unwrap().contains("CAP_IPC_LOCK"));
    });
}

#[test]
fn marking_a_flusher_is_refused_without_cap_sys_resource() {
    without(CapabilitySet::SYS_RESOURCE, || {
        for (answer, value) in [(set_io_flusher(), '1'), (clear_io_flusher(), '0')] {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), Kind::Denied);
            assert!(error.to_string().ends_with(value), "{error}");
            assert!(error.hint().unwrap().contains("CAP_SYS_RESOURCE"));
        }
    });
}

#[test]
fn the_name_and_flags_of_a_thread_survive_any_name() {
    let rest = "S 1 7 7 0 -1 1572928 0 0 0 0";
    for name in ["nbd-0", "a b", "a) S 1 2 3 4 5 6 7 (b", ")", "((", ""] {
        let stat = format!("41 ({name}) {rest}\n");
        assert_eq!(name_and_flags(&stat), Some((name, 1_572_928)), "{name:?}");
    }
    for broken in ["", "41 nbd-0 S 1", "41 (nbd-0) S 1 7 7 0 -1", "41 (nbd-0) S 1 7 7 0 -1 x"] {
        assert_eq!(name_and_flags(broken), None, "{broken:?}");
    }
}

/// 0x00180040: both bits of the mark, as a marked thread of Linux 6.12 shows them.
const MARKED: &str = "S 1 7 7 0 -1 1572928 0";

fn threads(flags: &[(u32, &str, &str)]) -> tempfile::TempDir {
    let files: Vec<_> = flags
        .iter()
        .map(|(tid, name, rest)| {
            (format!("proc/self/task/{tid}/stat"), format!("{tid} ({name}) {rest}\n"))
        })
        .collect();
    tree(&files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect::<Vec<_>>())
}

#[test]
fn marked_threads_are_counted() {
    let root = threads(&[(7, "sluice-store", MARKED), (8, "nbd 0) S", MARKED)]);
    assert_eq!(verify_io_flusher_on_all_threads(root.path()).unwrap(), 2);
}

#[test]
fn threads_without_the_whole_mark_are_named() {
    let root = threads(&[
        (7, "sluice-store", MARKED),
        (9, "cuda-EvtHandlr", "S 1 7 7 0 -1 4194368 0"),
        // Only PF_MEMALLOC_NOIO: what a driver's own allocation scope looks like.
        (8, "half (marked)", "S 1 7 7 0 -1 524352 0"),
    ]);
    let error = verify_io_flusher_on_all_threads(root.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert_eq!(
        error.to_string(),
        "threads without PR_SET_IO_FLUSHER: 8 (half (marked)), 9 (cuda-EvtHandlr)"
    );
    assert!(error.hint().unwrap().contains("before the first thread"));
}

#[test]
fn a_thread_that_ended_meanwhile_is_not_counted() {
    let root = threads(&[(7, "sluice-store", MARKED)]);
    fs::create_dir(root.path().join("proc/self/task/8")).unwrap();
    assert_eq!(verify_io_flusher_on_all_threads(root.path()).unwrap(), 1);
}

#[test]
fn a_process_without_listed_threads_is_an_error() {
    let root = tree(&[]);
    assert_eq!(verify_io_flusher_on_all_threads(root.path()).unwrap_err().kind(), Kind::Io);
    fs::create_dir_all(root.path().join("proc/self/task")).unwrap();
    let error = verify_io_flusher_on_all_threads(root.path()).unwrap_err();
    assert_eq!(error.kind(), Kind::Protocol, "an empty list proves nothing");
}

#[test]
fn this_test_process_is_no_flusher_and_its_own_threads_are_named() {
    std::thread::scope(|scope| {
        let (checked, wait) = std::sync::mpsc::channel::<()>();
        std::thread::Builder::new()
            .name("odd) name".to_owned())
            .spawn_scoped(scope, move || wait.recv())
            .unwrap();
        // A thread takes its name after it starts; wait for it to show.
        let named = || {
            fs::read_dir("/proc/self/task").unwrap().any(|task| {
                fs::read_to_string(task.unwrap().path().join("comm"))
                    .is_ok_and(|comm| comm == "odd) name\n")
            })
        };
        while !named() {
            std::thread::yield_now();
        }
        let error = verify_io_flusher_on_all_threads(&live()).unwrap_err();
        drop(checked);
        assert!(error.to_string().contains("(odd) name)"), "{error}");
    });
}

#[test]
fn real_time_scheduling_is_refused_without_the_capability() {
    without(CapabilitySet::SYS_NICE, || {
        let error = set_realtime_fifo(1).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.hint().unwrap().contains("CAP_SYS_NICE"));
    });
}

#[test]
fn real_time_scheduling_holds_for_the_calling_thread_or_says_what_to_give() {
    std::thread::spawn(|| match set_realtime_fifo(1) {
        Ok(()) => {
            let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
            let (_, rest) = stat.rsplit_once(')').unwrap();
            // Fields 40 and 41 of proc(5): real-time priority and policy.
            let fields: Vec<_> = rest.split_ascii_whitespace().skip(37).take(2).collect();
            assert_eq!(fields, ["1", "1"], "priority 1, SCHED_FIFO");
        }
        Err(error) => assert!(error.hint().unwrap().contains("CAP_SYS_NICE"), "{error}"),
    })
    .join()
    .unwrap();
}

#[test]
fn real_time_priorities_out_of_range_are_invalid() {
    std::thread::spawn(|| {
        for priority in [0, 100] {
            let error = set_realtime_fifo(priority).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{priority}");
        }
    })
    .join()
    .unwrap();
}

#[test]
fn the_oom_score_is_written_and_read_back() {
    let root = tree(&[("proc/self/oom_score_adj", "0\n")]);
    set_oom_score_adj(root.path(), -1000).unwrap();
    let written = fs::read_to_string(root.path().join("proc/self/oom_score_adj")).unwrap();
    assert_eq!(written, "-1000");
}

#[test]
fn lowering_the_oom_score_is_refused_without_cap_sys_resource() {
    without(CapabilitySet::SYS_RESOURCE, || {
        let error = set_oom_score_adj(&live(), -1000).unwrap_err();
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.hint().unwrap().contains("OOMScoreAdjust=-1000"));
    });
}

#[test]
fn open_files_are_raised_to_the_hard_limit_or_refused_below_the_need() {
    let files = raise_nofile(1).unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(files));
    let error = raise_nofile(files + 1).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.hint().unwrap().contains(&format!("LimitNOFILE={}", files + 1)));
}

#[test]
fn touched_stack_is_resident_and_more_than_there_is_is_refused() {
    std::thread::Builder::new()
        .stack_size(1 << 20)
        .spawn(|| {
            touch_stack(512 << 10).unwrap();
            let here = 0u8;
            let page = (&raw const here as usize - (256 << 10)) & !(PAGE_BYTES - 1);
            let mut resident = [0u8; 1];
            // SAFETY: asks about one mapped page of this thread's own stack.
            let answer =
                unsafe { libc::mincore(page as *mut _, PAGE_BYTES, resident.as_mut_ptr()) };
            assert_eq!((answer, resident[0] & 1), (0, 1));
            let error = touch_stack(2 << 20).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.to_string().contains("2 MiB"), "{error}");
        })
        .unwrap()
        .join()
        .unwrap();
}
