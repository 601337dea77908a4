// SPDX-License-Identifier: MIT OR Apache-2.0
//! What other programs do with the GPUs on which the store is: looked at whenever the
//! store was seen with one of them open, and never while all are closed.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use super::{Inbox, Message, store_link};
use crate::engine::arbiter::{Event, Lent, vram_bound};
use crate::engine::error::{Error, Kind, Result};
use crate::engine::gpu::GpuSelector;
use crate::engine::units::{ByteLen, SLAB_BYTES};
use crate::engine::view::{Status, Tier};
use crate::vram::{Gpus, Memory, User};

/// What to look at, and for what.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    /// What is to stay free on each GPU.
    pub reserve: ByteLen,
    /// The CUDA driver's library, if one is configured.
    pub library: Option<PathBuf>,
    /// The store as it was seen last, whoever looked.
    pub store: Option<Arc<Status>>,
    /// Whether the machine runs on battery.
    pub on_battery: bool,
}

impl Watched {
    /// The store, while it has a GPU open and could give some of it back.
    pub fn lending(&self) -> Option<&Arc<Status>> {
        // Without a spill nothing could be given back.
        let store = self.store.as_ref().filter(|store| store_link::view(store).has_spill)?;
        store.tiers.iter().any(|tier| device(tier).is_some()).then_some(store)
    }
}

/// The GPU of a tier that may be asked.
fn device(tier: &Tier) -> Option<GpuSelector> {
    let name = tier.device.as_ref().filter(|_| tier.open && tier.is_lent())?;
    name.parse().ok()
}

/// Looks each time the store was seen, for as long as the inbox is there.
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
        if let Some(before) = now.lending() {
            let opened = match gpus.take() {
                Some(opened) => opened,
                None => open(&root, &now).await,
            };
            let seen = look(&socket, before, &opened).await;
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
        } else {
            // Ends NVML, too, which would keep the GPU's nodes open.
            gpus = None;
            tell(&inbox, &mut bound, None, None);
        }
        if watched.changed().await.is_err() {
            return;
        }
    }
}

async fn open(root: &std::path::Path, watched: &Watched) -> Arc<Gpus> {
    let (root, library) = (root.to_path_buf(), watched.library.clone());
    let opened = tokio::task::spawn_blocking(move || Gpus::open(&root, library.as_deref())).await;
    Arc::new(opened.expect("opening does not panic"))
}

/// The store's fast tiers with what is free beside each, and who uses the most. What is
/// asked of the GPUs lies between `before` and a look of its own.
async fn look(
    socket: &std::path::Path,
    before: &Status,
    gpus: &Arc<Gpus>,
) -> Result<Option<(Vec<Lent>, Option<User>)>> {
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
        let who =
            largest.map_or_else(String::new, |User { who, bytes }| format!("; {who} uses {bytes}"));
        tracing::info!("other programs leave {bytes} of GPU memory above the reserve{who}");
    }
    let _ = inbox.send(Message::Event(Event::VramBounded(next)));
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::mpsc;

    use super::*;

    const GIB: u64 = 1 << 30;

    /// A store that holds 1.5 GiB of the 4 that it could on the card at 0000:03:00.0.
    fn status(open: bool) -> Arc<Status> {
        let text = include_str!("../../tests/trees/status/reply.json");
        let mut status: Status = serde_json::from_str(text).unwrap();
        status.tiers[0].device = Some("0000:03:00.0".to_owned());
        status.tiers[0].open = open;
        Arc::new(status)
    }

    /// Answers as that store does, and counts.
    fn serve(socket: &std::path::Path) -> Arc<AtomicUsize> {
        let listener = UnixListener::bind(socket).unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                BufReader::new(&stream).read_line(&mut String::new()).unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                serde_json::to_writer(&stream, &*status(true)).unwrap();
                stream.write_all(b"\n").unwrap();
            }
        });
        asked
    }

    async fn bound(messages: &mut mpsc::UnboundedReceiver<Message>) -> Option<ByteLen> {
        match messages.recv().await {
            Some(Message::Event(Event::VramBounded(bound))) => bound,
            _ => panic!("something else is said"),
        }
    }

    #[tokio::test]
    async fn the_answer_that_the_store_gave_another_is_the_first_of_the_two_looks() {
        let folder = tempfile::tempdir().unwrap();
        let card = folder.path().join("sys/bus/pci/devices/0000:03:00.0");
        std::fs::create_dir_all(&card).unwrap();
        let used = |bytes: u64| {
            std::fs::write(card.join("mem_info_vram_used"), bytes.to_string()).unwrap();
        };
        std::fs::write(card.join("mem_info_vram_total"), (4 * GIB).to_string()).unwrap();
        used(4 * GIB);
        let socket = folder.path().join("store.sock");
        let asked = serve(&socket);
        let (watched, seen) = watch::channel(Watched {
            reserve: ByteLen(GIB),
            library: Some("/nowhere/libcuda.so.1".into()),
            store: Some(status(true)),
            on_battery: false,
        });
        let (inbox, mut messages) = mpsc::unbounded_channel();
        tokio::spawn(watch(socket, folder.path().to_path_buf(), seen, inbox));
        // 1.5 GiB are held, nothing is free, and one GiB is to be.
        assert_eq!(bound(&mut messages).await, Some(ByteLen(GIB / 2)));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        used(3 * GIB);
        watched.send_modify(|watched| watched.store = Some(status(true)));
        assert_eq!(bound(&mut messages).await, Some(ByteLen(3 * GIB / 2)));
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        // One that lends nothing is not asked about its GPU, and ends the bound.
        watched.send_modify(|watched| watched.store = Some(status(false)));
        assert_eq!(bound(&mut messages).await, None);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}
