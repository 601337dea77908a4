// SPDX-License-Identifier: MIT OR Apache-2.0
//! Steps that were done and how each is undone, in reverse, unless kept.

use anyhow::Result;

type Step = (&'static str, Box<dyn FnOnce() -> Result<()>>);

/// Undoes what was done so far when dropped: a failed start leaves nothing behind.
#[derive(Default)]
pub struct Undo(Vec<Step>);

impl Undo {
    /// Notes how the step just done is undone; `what` is for the log.
    pub fn push(&mut self, what: &'static str, undo: impl FnOnce() -> Result<()> + 'static) {
        self.0.push((what, Box::new(undo)));
    }

    /// Everything went well: nothing is undone.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        while let Some((what, undo)) = self.0.pop() {
            match undo() {
                Ok(()) => tracing::info!("undone: {what}"),
                Err(error) => tracing::error!("could not undo: {what}: {error:#}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    #[test]
    fn steps_are_undone_in_reverse_past_failures_and_not_at_all_when_kept() {
        let log = Rc::new(RefCell::new(Vec::new()));
        let fill = |undo: &mut Undo| {
            for n in 0..3 {
                let log = Rc::clone(&log);
                undo.push("step", move || {
                    log.borrow_mut().push(n);
                    anyhow::ensure!(n != 1, "step 1");
                    Ok(())
                });
            }
        };
        let mut undo = Undo::default();
        fill(&mut undo);
        drop(undo);
        assert_eq!(*log.borrow(), [2, 1, 0]);
        let mut undo = Undo::default();
        fill(&mut undo);
        undo.keep();
        assert_eq!(*log.borrow(), [2, 1, 0]);
    }
}
