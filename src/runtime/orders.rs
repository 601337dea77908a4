// SPDX-License-Identifier: MIT OR Apache-2.0
//! Orders that clients gave: what a request asks of the keeper, who waits for
//! its end, and what each is answered. Sees the clock only as an argument.

use std::time::{Duration, Instant};

use super::control::{Answer, ControlSocket, Ticket};
use super::keeper::Keeper;
use crate::engine::error::{Error, Kind, Result};
use crate::engine::orders::{Orders, Progress, State, Targets, TierProgress};
use crate::engine::store::{Store, TierSlots};
use crate::engine::units::{ByteLen, SLAB_BYTES};
use crate::engine::view::{Ended, Outcome, Refusal, Reply, Request};

/// What the keeper was told at the start, and who waits for what it was told since.
pub struct Desk {
    configured: Orders,
    in_force: Orders,
    waiting: Vec<Waiting>,
    tickets: u64,
}

struct Waiting {
    ticket: Ticket,
    /// The keeper's number of the order.
    order: u64,
    begun: Instant,
    until: Instant,
}

impl Desk {
    /// A desk that goes back to `configured` when it is told to resume;
    /// `in_force` is what the keeper was told last.
    #[must_use]
    pub fn new(configured: Orders, in_force: Orders) -> Self {
        Self { configured, in_force, waiting: Vec::new(), tickets: 0 }
    }

    /// What the keeper was told last.
    pub fn in_force(&self) -> &Orders {
        &self.in_force
    }

    /// The orders that a request means, given how the tiers stand now.
    ///
    /// Errors: `Invalid` for a tier that is none of the fast ones.
    fn orders(&self, request: &Request, tiers: &[TierProgress]) -> Result<Orders> {
        let with = |targets, close| Orders { targets, close, ..self.configured.clone() };
        Ok(match request {
            Request::Target { bytes, tier: None, .. } => {
                with(Targets::Total(ByteLen(*bytes)), false)
            }
            Request::Target { bytes, tier: Some(name), .. } => {
                let mut targets: Vec<ByteLen> =
                    tiers.iter().map(|tier| bytes_of(tier.target_slabs.into())).collect();
                targets[find(name, tiers)?] = ByteLen(*bytes);
                with(Targets::Each(targets), false)
            }
            Request::Drain { .. } => with(Targets::Total(ByteLen(0)), false),
            Request::CloseGpu { .. } => with(Targets::Total(ByteLen(0)), true),
            Request::Resume { .. } | Request::Status {} | Request::Readmit { .. } => {
                self.configured.clone()
            }
        })
    }

    /// Gives the keeper what a request means; its client waits with the ticket.
    ///
    /// Errors: what [`Desk::orders`] and the keeper refuse; nothing was changed.
    fn give(&mut self, request: &Request, keeper: &Keeper) -> Result<Ticket> {
        let orders = self.orders(request, &keeper.progress().tiers)?;
        let order = keeper.give(&orders)?;
        self.in_force = orders;
        Ok(self.wait_for(order, request, Instant::now()))
    }

    /// Follows an order, or has its client wait for the keeper. What is asked
    /// with [`Request::Status`] is no order, and not known here.
    pub fn decide(&mut self, request: &Request, store: &Store, keeper: &Keeper) -> Answer {
        tracing::info!("asked for {request:?}");
        let answer = match request {
            Request::Readmit { tier } => readmit(tier, store, keeper).map(Answer::Now),
            order => self.give(order, keeper).map(Answer::Later),
        };
        answer.unwrap_or_else(|error| {
            tracing::warn!("refused: {error}");
            Answer::Now(Reply::Refused(Refusal::from(&error)))
        })
    }

    /// Answers those whose orders have ended or whose time is over.
    pub fn answer(&mut self, control: &mut ControlSocket, keeper: &Keeper) {
        if !self.waiting.is_empty() {
            for (ticket, reply) in self.look(&keeper.progress(), Instant::now()) {
                control.finish(ticket, &reply);
            }
        }
    }

    /// Notes that somebody waits for `order`, which was just given.
    fn wait_for(&mut self, order: u64, request: &Request, now: Instant) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let until = now + Duration::from_millis(request.wait_ms());
        self.waiting.push(Waiting { ticket, order, begun: now, until });
        ticket
    }

    /// When somebody's deadline passes.
    pub fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.until).min()
    }

    /// Those whose order has ended, was replaced, or whose deadline has passed,
    /// each with its answer. They wait no more.
    fn look(&mut self, progress: &Progress, now: Instant) -> Vec<(Ticket, Reply)> {
        let mut answers = Vec::new();
        self.waiting.retain(|waiting| {
            let ended = how_it_stands(waiting, progress, now);
            if let Some(ended) = ended {
                let reply = Reply::Ended(outcome(ended, waiting.begun, progress, now));
                answers.push((waiting.ticket, reply));
            }
            ended.is_none()
        });
        answers
    }
}

/// The position of a fast tier among them.
fn find(name: &str, tiers: &[TierProgress]) -> Result<usize> {
    tiers.iter().position(|tier| tier.name == name).ok_or_else(|| {
        let names: Vec<&str> = tiers.iter().map(|tier| &*tier.name).collect();
        Error::new(Kind::Invalid, format!("there is no fast tier {name:?}"))
            .with_hint(format!("one of: {}", names.join(", ")))
    })
}

fn readmit(name: &str, store: &Store, keeper: &Keeper) -> Result<Reply> {
    let number = position(store.tiers(), name)?;
    let slabs = store.readmit(number)?;
    tracing::info!("tier {name} is used again, {slabs} of its slabs at once");
    Ok(readmitted(&keeper.progress(), slabs))
}

/// The answer to a tier's readmission, which is done at once.
fn readmitted(progress: &Progress, slabs: u32) -> Reply {
    let now = Instant::now();
    let message = format!("{} are in use again", bytes_of(slabs.into()));
    let none = Progress { order: progress.order, state: State::AtRest, tiers: Vec::new() };
    let standing = outcome(Ended::Done, now, progress, now);
    let (target_bytes, held_bytes) = (standing.target_bytes, standing.held_bytes);
    // What the keeper did for other orders is not this one's.
    let done = outcome(Ended::Done, now, &none, now);
    Reply::Ended(Outcome { target_bytes, held_bytes, message, ..done })
}

/// The position of any tier in the store's list.
fn position(tiers: &[TierSlots], name: &str) -> Result<usize> {
    tiers.iter().position(|slots| slots.tier().name() == name).ok_or_else(|| {
        let names: Vec<&str> = tiers.iter().map(|slots| slots.tier().name()).collect();
        Error::new(Kind::Invalid, format!("there is no tier {name:?}"))
            .with_hint(format!("one of: {}", names.join(", ")))
    })
}

fn bytes_of(slabs: u64) -> ByteLen {
    ByteLen(slabs * SLAB_BYTES as u64)
}

/// How it ended; `None`: it goes on and its client waits.
fn how_it_stands(waiting: &Waiting, progress: &Progress, now: Instant) -> Option<Ended> {
    if progress.order > waiting.order {
        return Some(Ended::Replaced);
    }
    // The keeper may not have seen the order yet.
    let seen = progress.order == waiting.order;
    if seen && progress.state == State::AtRest {
        return Some(Ended::Done);
    }
    // Stuck is tried again by the keeper; its client gave it until the deadline.
    let late = if matches!(progress.state, State::Stuck(_)) && seen {
        Ended::Stuck
    } else {
        Ended::Continues
    };
    (now >= waiting.until).then_some(late)
}

/// What the keeper did and has left to do.
fn outcome(ended: Ended, begun: Instant, progress: &Progress, now: Instant) -> Outcome {
    let tiers = &progress.tiers;
    let slabs_released = tiers.iter().map(|tier| tier.released_slabs).sum();
    let over = |tier: &TierProgress| u64::from(tier.held_slabs.saturating_sub(tier.target_slabs));
    let slabs = |count: fn(&TierProgress) -> u32| -> u64 {
        bytes_of(tiers.iter().map(|tier| u64::from(count(tier))).sum()).0
    };
    Outcome {
        outcome: ended,
        elapsed_ms: u64::try_from((now - begun).as_millis()).unwrap_or(u64::MAX),
        target_bytes: slabs(|tier| tier.target_slabs),
        held_bytes: slabs(|tier| tier.held_slabs),
        slabs_released,
        released_bytes: bytes_of(slabs_released).0,
        extents_moved: tiers.iter().map(|tier| tier.moved_extents).sum(),
        moved_bytes: tiers.iter().map(|tier| tier.moved_bytes).sum(),
        left_bytes: bytes_of(tiers.iter().map(over).sum()).0,
        left_pages: tiers.iter().map(|tier| tier.pages_over_target).sum(),
        continues: matches!(ended, Ended::Continues | Ended::Stuck),
        message: match &progress.state {
            State::Stuck(why) => why.clone(),
            State::AtRest | State::Working => String::new(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tier(name: &str, held: u32, target: u32) -> TierProgress {
        TierProgress {
            tier: 0,
            name: name.to_owned(),
            is_open: true,
            held_slabs: held,
            target_slabs: target,
            pages_over_target: u64::from(held.saturating_sub(target)) * 100,
            released_slabs: 2,
            moved_extents: 3,
            moved_bytes: 3 << 21,
        }
    }

    fn progress(order: u64, state: State) -> Progress {
        Progress { order, state, tiers: vec![tier("cuda:0", 5, 4), tier("cuda:1", 3, 0)] }
    }

    fn desk() -> Desk {
        let configured =
            Orders { targets: Targets::Total(bytes_of(12)), reserve: ByteLen(7), close: false };
        Desk::new(configured.clone(), configured)
    }

    fn drain(deadline_ms: u64) -> Request {
        Request::Drain { deadline_ms: Some(deadline_ms) }
    }

    #[test]
    fn a_request_becomes_orders_with_the_configured_reserve() {
        let tiers = progress(1, State::AtRest).tiers;
        let target = |bytes, tier: Option<&str>| Request::Target {
            bytes,
            tier: tier.map(str::to_owned),
            deadline_ms: None,
        };
        for (request, targets, close) in [
            (target(5, None), Targets::Total(ByteLen(5)), false),
            (target(9, Some("cuda:1")), Targets::Each(vec![bytes_of(4), ByteLen(9)]), false),
            (drain(1), Targets::Total(ByteLen(0)), false),
            (Request::CloseGpu { deadline_ms: None }, Targets::Total(ByteLen(0)), true),
            (Request::Resume { deadline_ms: None }, Targets::Total(bytes_of(12)), false),
        ] {
            let orders = desk().orders(&request, &tiers).unwrap();
            assert_eq!(orders, Orders { targets, reserve: ByteLen(7), close }, "{request:?}");
        }
        let error = desk().orders(&target(1, Some("cuda:9")), &tiers).unwrap_err();
        assert!(error.hint().unwrap().contains("cuda:0, cuda:1"), "{error}");
    }

    #[test]
    fn a_client_is_answered_when_its_order_has_ended_and_not_before() {
        let (mut desk, start) = (desk(), Instant::now());
        let ticket = desk.wait_for(2, &drain(1000), start);
        let later = start + Duration::from_millis(400);
        // The keeper is still at rest over the order before.
        assert_eq!(desk.look(&progress(1, State::AtRest), later), []);
        assert_eq!(desk.look(&progress(2, State::Working), later), []);
        assert_eq!(desk.look(&progress(2, State::Stuck("x".into())), later), []);
        assert_eq!(desk.due(), Some(start + Duration::from_secs(1)));
        let answers = desk.look(&progress(2, State::AtRest), later);
        let [(answered, Reply::Ended(outcome))] = &answers[..] else { panic!("{answers:?}") };
        assert_eq!((*answered, outcome.outcome, outcome.elapsed_ms), (ticket, Ended::Done, 400));
        assert_eq!((outcome.slabs_released, outcome.extents_moved), (4, 6));
        assert_eq!((outcome.left_bytes, outcome.left_pages), (bytes_of(4).0, 400));
        assert!(!outcome.continues && desk.waiting.is_empty());
    }

    #[test]
    fn a_deadline_and_another_order_end_the_waiting_too() {
        let start = Instant::now();
        let late = start + Duration::from_millis(10);
        for (state, order, ended, continues) in [
            (State::Working, 2, Ended::Continues, true),
            (State::AtRest, 1, Ended::Continues, true),
            (State::Stuck("the disk is full".into()), 2, Ended::Stuck, true),
            (State::Working, 3, Ended::Replaced, false),
        ] {
            let mut desk = desk();
            desk.wait_for(2, &drain(10), start);
            let answers = desk.look(&progress(order, state.clone()), late);
            let [(_, Reply::Ended(outcome))] = &answers[..] else { panic!("{answers:?}") };
            assert_eq!((outcome.outcome, outcome.continues), (ended, continues), "{state:?}");
            assert_eq!(outcome.message.is_empty(), !matches!(state, State::Stuck(_)));
        }
    }
}
