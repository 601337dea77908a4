// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other programs do with the GPUs on which the store is: looked at while
//! one of them is open, and never while all are closed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Inbox, Message, store_link};
use crate::engine::arbiter::{Event, Lent, vram_bound};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::GpuSelector;
use crate::engine::units::{ByteLen, SLAB_BYTES};
use crate::engine::view::{Status, Tier};
use crate::vram::{Gpus, Memory, User};

/// Between two looks: a game that starts takes its memory within seconds.
const LOOK: Duration = Duration::from_secs(1);
/// On battery each wake-up costs.
const LOOK_ON_BATTERY: Duration = Duration::from_secs(5);

/// What to look at, and for what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Watched {
    /// What is to stay free on each GPU.
    pub reserve: ByteLen,
    /// The CUDA driver's library, if one is configured.
    pub library: Option<PathBuf>,
    /// Whether the store has a GPU open.
    pub open: bool,
    /// Whether the machine runs on battery.
    pub on_battery: bool,
}

/// Whether the store has a GPU open.
pub(super) fn is_open(status: Option<&Status>) -> bool {
    status.is_some_and(|status| status.tiers.iter().any(|tier| device(tier).is_some()))
}

/// The GPU of a tier that may be asked.
fn device(tier: &Tier) -> Option<GpuSelector> {
    let name = tier.device.as_ref().filter(|_| tier.open && tier.is_lent())?;
    name.parse().ok()
}

/// Looks for as long as the inbox is there.
pub(super) async fn watch(
    socket: PathBuf,
    root: PathBuf,
    mut watched: watch::Receiver<Watched>,
    inbox: Inbox,
) {
    let mut gpus = None;
    let mut bound = None;
    let mut complained = None;
    while !inbox.is_closed() {
        let now = watched.borrow_and_update().clone();
        if !now.open {
            // Ends NVML, too, which would keep the GPU's nodes open.
            gpus = None;
            tell(&inbox, &mut bound, None, None);
            if watched.changed().await.is_err() {
                return;
            }
            continue;
        }
        let opened = match gpus.take() {
            Some(opened) => opened,
            None => open(&root, &now).await,
        };
        let seen = look(&socket, &opened).await;
        gpus = Some(opened);
        match seen {
            Ok(Some((tiers, largest))) => {
                complained = None;
                let next = vram_bound(&tiers, now.reserve, bound);
                tell(&inbox, &mut bound, next, largest);
            }
            // The store is gone, or closed its GPU: that is told by others.
            Ok(None) => {}
            Err(error) => {
                let text = error.to_string();
                if complained.as_ref() != Some(&text) {
                    tracing::warn!("others' use of GPU memory cannot be seen: {text}");
                    complained = Some(text);
                }
            }
        }
        let pause = if now.on_battery { LOOK_ON_BATTERY } else { LOOK };
        // A change of what is to be looked at is a reason to look now.
        let _ = tokio::time::timeout(pause, watched.changed()).await;
    }
}

async fn open(root: &std::path::Path, watched: &Watched) -> Arc<Gpus> {
    let (root, library) = (root.to_path_buf(), watched.library.clone());
    let opened = tokio::task::spawn_blocking(move || Gpus::open(&root, library.as_deref())).await;
    Arc::new(opened.expect("opening does not panic"))
}

/// The store's fast tiers with what is free beside each, and who uses the most.
async fn look(
    socket: &std::path::Path,
    gpus: &Arc<Gpus>,
) -> Result<Option<(Vec<Lent>, Option<User>)>> {
    let Some(before) = store_link::look(socket).await? else { return Ok(None) };
    let devices: Vec<_> = before.tiers.iter().map(device).collect();
    let asked = Arc::clone(gpus);
    let answers = tokio::task::spawn_blocking(move || -> Result<Vec<Option<Memory>>> {
        devices.into_iter().map(|device| device.map_or(Ok(None), |gpu| asked.memory(gpu))).collect()
    })
    .await
    .map_err(|error| Error::new(Kind::Io, "asking ended early").with_source(error))??;
    let Some(after) = store_link::look(socket).await? else { return Ok(None) };
    if before.pid != after.pid || before.tiers.len() != after.tiers.len() {
        return Ok(None);
    }
    let both = before.tiers.iter().zip(&after.tiers).zip(&answers);
    let tiers = both
        .filter(|((tier, _), _)| tier.kind == "fast")
        .map(|((before, after), memory)| Lent {
            // What the store took or gave back meanwhile is not taken for others'.
            held: ByteLen(before.held_bytes.max(after.held_bytes)),
            full: ByteLen(u64::from(after.slabs_max) * SLAB_BYTES as u64),
            free: memory.as_ref().map(|memory| memory.free),
        })
        .collect();
    let users = answers.into_iter().flatten().filter_map(|memory| memory.largest);
    Ok(Some((tiers, users.max_by_key(|user| user.bytes))))
}

fn tell(inbox: &Inbox, bound: &mut Option<ByteLen>, next: Option<ByteLen>, largest: Option<User>) {
    if *bound == next {
        return;
    }
    *bound = next;
    if let Some(bytes) = next {
        let who = largest
            .map_or_else(String::new, |User { who, bytes }| format!("; {who} uses {bytes}"));
        tracing::info!("other programs leave {bytes} of GPU memory above the reserve{who}");
    }
    let _ = inbox.send(Message::Event(Event::VramBounded(next)));
}
