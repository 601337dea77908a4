// SPDX-License-Identifier: MIT OR Apache-2.0
//! The store's eye on its holder: sees it die, and lets a new one take over.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};

use super::custody::Custody;
use super::hold_socket;
use crate::host::handover;

/// Whether a store that cannot listen for a holder may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listening {
    /// It may not.
    Now,
    /// It has pages to serve: it tries again at each look.
    AsSoonAsItCan,
}

/// See the module.
pub struct HolderWatch {
    custody: Arc<Custody>,
    /// `None`: it could not be made yet.
    listener: Option<OwnedFd>,
    path: PathBuf,
    /// Readable when the holder is gone.
    link: Option<OwnedFd>,
    /// How to start a holder, where nothing else does.
    start: Option<Start>,
}

struct Start {
    config: PathBuf,
    socket: PathBuf,
    child: Option<Child>,
}

impl HolderWatch {
    /// Listens beside the control socket for whoever wants to hold. A store that
    /// had a holder and is not looked after by systemd starts another one itself
    /// when that one dies.
    pub fn new(
        custody: Arc<Custody>,
        config: &Path,
        socket: &Path,
        listening: Listening,
    ) -> Result<Self> {
        let path = hold_socket(socket);
        let listener = match handover::listen(&path) {
            Ok(listener) => Some(listener),
            Err(_) if listening == Listening::AsSoonAsItCan => None,
            Err(errno) => {
                return Err(errno).with_context(|| format!("cannot listen on {}", path.display()));
            }
        };
        let link = custody.watch();
        let supervised = std::env::var_os("NOTIFY_SOCKET").is_some();
        let start = (link.is_some() && !supervised).then(|| Start {
            config: config.to_owned(),
            socket: socket.to_owned(),
            child: None,
        });
        Ok(Self { custody, listener, path, link, start })
    }

    /// What to wait on.
    pub fn poll_fds(&self) -> Vec<PollFd<'_>> {
        let mut fds = Vec::new();
        fds.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        if let Some(link) = &self.link {
            fds.push(PollFd::new(link, PollFlags::RDHUP));
        }
        fds
    }

    /// Deals with a holder that died or a new one that waits. Gives what a person
    /// should know, if anything.
    pub fn look(&mut self) -> Option<String> {
        let mut message = None;
        if self.listener.is_none() {
            self.listener = handover::listen(&self.path).ok();
        }
        if self.link.is_some() && !self.custody.is_held() {
            self.link = None;
            message = Some(
                "the holder is gone: until another one comes, the pages die with this process"
                    .to_owned(),
            );
            tracing::error!("{}", message.as_deref().unwrap_or_default());
            if let Err(error) = self.start_holder() {
                tracing::error!("{error:#}");
            }
        }
        if let Some(listener) = &self.listener
            && let Ok(link) = handover::accept(listener.as_fd())
        {
            match self.custody.take_holder(link) {
                Ok(()) => {
                    self.link = self.custody.watch();
                    message = Some("another holder has everything".to_owned());
                    tracing::info!("another holder has everything");
                }
                Err(error) => tracing::error!("{error:#}"),
            }
        }
        message
    }

    fn start_holder(&mut self) -> Result<()> {
        let Some(start) = &mut self.start else { return Ok(()) };
        if let Some(earlier) = &mut start.child {
            // It is dead, or it is not ours to wait for any longer.
            let _ = earlier.try_wait();
        }
        let child = Command::new("/proc/self/exe")
            .args(["hold", "--adopt", "--config"])
            .arg(&start.config)
            .arg("--socket")
            .arg(&start.socket)
            .stdin(Stdio::null())
            .spawn()
            .context("cannot start another holder")?;
        start.child = Some(child);
        Ok(())
    }
}

impl Drop for HolderWatch {
    fn drop(&mut self) {
        if self.listener.is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
