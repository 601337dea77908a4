// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guard that scenarios rely on: an allocation by an armed thread, from
//! Rust or from C, ends the process. Each case runs in a process of its own.

use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use sluice::runtime::malloc_guard::arm;

const CASE: &str = "SLUICE_GUARD_CASE";

/// Runs `case` in a child, which is this test again.
fn signal_of(test: &str, case: &str) -> (Option<i32>, String) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(CASE, case)
        .output()
        .unwrap();
    (output.status.signal(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// What the child does between arming and disarming.
fn act(case: &str) {
    let text = c"a text long enough to be worth a copy of its own";
    let before = black_box(vec![1u8; 64]);
    arm(true);
    match case {
        "rust" => drop(black_box(Vec::<u8>::with_capacity(100))),
        "grow" => {
            let mut before = before;
            before.reserve_exact(black_box(100_000));
        }
        // SAFETY: a NUL-terminated text; the copy is never freed.
        "c" => drop(black_box(unsafe { libc::strdup(text.as_ptr()) })),
        "free" => drop(before),
        _ => {}
    }
    arm(false);
    drop(black_box(vec![2u8; 64]));
}

#[test]
fn an_allocation_on_an_armed_thread_aborts_and_nothing_else_does() {
    let test = "an_allocation_on_an_armed_thread_aborts_and_nothing_else_does";
    if let Ok(case) = std::env::var(CASE) {
        return act(&case);
    }
    for case in ["rust", "grow", "c"] {
        let (signal, said) = signal_of(test, case);
        assert_eq!(signal, Some(libc::SIGABRT), "{case}: {said}");
        assert!(said.contains("an armed I/O thread allocated"), "{case}: {said}");
    }
    for case in ["nothing", "free"] {
        let (signal, said) = signal_of(test, case);
        assert_eq!(signal, None, "{case}: {said}");
    }
}
