// SPDX-License-Identifier: GPL-2.0-only
//! What verifying the policies cost when their cost was last looked at:
//! `bpf/verifier-cost.txt`, a line `POLICY HOOK INSTRUCTIONS` for each program.
//!
//! The verifier's count is the same each time for one object and one kernel. It
//! moves by a few instructions with another clang, and by a part of itself with
//! another kernel, which prunes states differently; a loop that is no longer
//! bounded early multiplies it. So a quarter more is let pass, and 64
//! instructions, since small programs move by more than a quarter of nothing.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, Result, ensure};

/// What a count may exceed its baseline by: that part of it (as a divisor) ...
const PART: u32 = 4;
/// ... or so many instructions, whichever is more.
const LEAST: u32 = 64;

/// The costs, by policy and hook.
#[derive(Debug)]
pub struct Baseline(HashMap<(String, String), u32>);

impl Baseline {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the baseline {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> Result<Self> {
        let mut all = HashMap::new();
        for (number, line) in (1..).zip(text.lines()) {
            if line.starts_with('#') {
                continue;
            }
            let place = || format!("line {number}: {line:?} is not POLICY HOOK INSTRUCTIONS");
            let words: Vec<&str> = line.split(' ').collect();
            let [policy, hook, count] = words[..] else { return Err(anyhow::anyhow!(place())) };
            let count = count.parse().with_context(place)?;
            let before = all.insert((policy.to_owned(), hook.to_owned()), count);
            ensure!(before.is_none(), "line {number}: {policy} {hook} is there twice");
        }
        Ok(Self(all))
    }

    /// What is wrong with a program's cost, if anything.
    pub fn judge(&self, policy: &str, hook: &str, verified: u32) -> Option<String> {
        let Some(known) = self.0.get(&(policy.to_owned(), hook.to_owned())) else {
            return Some(format!("{policy} {hook}: {verified}, and the baseline does not have it"));
        };
        let most = known + (known / PART).max(LEAST);
        (verified > most).then(|| {
            format!("{policy} {hook}: {verified}, the baseline is {known}, the most {most}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_more_passes_and_no_more_than_that() {
        let known = Baseline::parse("# text\nlfu evict_prepare 1000\nlfu bind 10\n").expect("good");
        assert_eq!(known.judge("lfu", "evict_prepare", 1250), None);
        let said = known.judge("lfu", "evict_prepare", 1251).expect("too much");
        assert!(said.contains("1251, the baseline is 1000, the most 1250"), "{said}");
        assert_eq!(known.judge("lfu", "bind", 74), None);
        assert!(known.judge("lfu", "bind", 75).is_some());
    }

    #[test]
    fn a_program_that_has_no_baseline_does_not_pass() {
        let known = Baseline::parse("").expect("good");
        let said = known.judge("lfu", "bind", 1).expect("not known");
        assert!(said.contains("the baseline does not have it"), "{said}");
    }

    #[test]
    fn a_line_that_is_none_is_an_error() {
        for text in ["lfu bind", "lfu bind many", "lfu bind 1 2", "a b 1\na b 2"] {
            assert!(Baseline::parse(text).is_err(), "{text}");
        }
    }
}
