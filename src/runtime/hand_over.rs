// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a store ends between two requests so that another one can take over:
//! the keeper pauses, the holder is told, the connections end. Until the last
//! of these everything can be taken back, and is.

use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::holder::custody::Custody;
use super::holder::message::End;
use super::keeper::Keeper;

/// How long the keeper may take to end what it is at: longer than a driver's
/// usual call, and short enough for whoever asks something meanwhile.
const KEEPER: Duration = Duration::from_secs(10);

/// The connections to the kernel's devices.
pub trait Connections {
    /// Ends every connection between two requests, and detaches nothing: the
    /// kernel waits for another store.
    fn stand_still(&mut self);
    /// Takes [`Connections::stand_still`] back.
    fn go_on(&mut self) -> Result<()>;
}

/// Leaves everything to the next store; this one has only to end now.
///
/// Errors: nobody holds this store, so the pages would be gone with it, or its
/// keeper is held up. It serves as before then.
pub fn hand_over(
    reason: &str,
    custody: &Custody,
    keeper: &Keeper,
    connections: &mut impl Connections,
) -> Result<()> {
    ensure!(
        custody.is_held(),
        "{reason}: this store has no holder to hand over to; start it with sluice-store hold"
    );
    tracing::info!("{reason}: handing over to another store");
    // No slab is taken or given back any more.
    ensure!(
        keeper.pause(KEEPER),
        "{reason}: a tier has not answered the keeper for {} s; still serving",
        KEEPER.as_secs()
    );
    let left = leave(reason, custody, connections);
    if left.is_err() {
        keeper.go_on();
    }
    left
}

fn leave(reason: &str, custody: &Custody, connections: &mut impl Connections) -> Result<()> {
    ensure!(
        custody.goodbye(End::HandingOver, 0, reason),
        "{reason}: the holder does not answer; still serving"
    );
    connections.stand_still();
    if !custody.is_held() {
        connections.go_on()?;
        bail!("{reason}: the holder ended meanwhile; still serving, with the memory it has now");
    }
    Ok(())
}
