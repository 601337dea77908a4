// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is said in notifications, and how often. Pure: time comes in.

use std::time::Duration;

use super::view::{Click, Icon};
use crate::engine::arbiter::Explanation;
use crate::engine::error::Error;

/// The same text is not said again within this time: failed orders are tried again,
/// and each try may fail in the same way.
const SAME: Duration = Duration::from_secs(30 * 60);
/// Nor are more than [`MOST`] of one topic.
const WINDOW: Duration = Duration::from_secs(10 * 60);
const MOST: usize = 4;

/// A notification replaces the one before of the same topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Something is wrong.
    Fault,
    /// Something changed.
    Change,
    /// The answer to a click.
    Answer,
}

impl Topic {
    /// A state's icon would be that of another moment: what a notice tells of may be over,
    /// or only begin.
    #[must_use]
    pub fn icon(self) -> Icon {
        match self {
            Self::Fault => Icon::Fault,
            Self::Change | Self::Answer => Icon::Plain,
        }
    }
}

/// A notification, as plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it replaces.
    pub topic: Topic,
    /// Its first line.
    pub summary: String,
    /// The rest.
    pub body: String,
}

/// Something that the control plane told everybody.
#[must_use]
pub fn of_notice(urgent: bool, text: &str) -> Message {
    let (topic, summary) =
        if urgent { (Topic::Fault, "Sluice: a fault") } else { (Topic::Change, "Sluice") };
    Message { topic, summary: summary.to_owned(), body: text.to_owned() }
}

/// A click that came to nothing, with the next step.
#[must_use]
pub fn of_error(click: Click, error: &Error) -> Message {
    let what = match click {
        Click::Enable => "cannot switch on",
        Click::Disable => "cannot switch off",
        Click::TakeGpu => "cannot give you the GPU",
        Click::LendAgain => "cannot lend it again",
        Click::Why => "cannot say why",
        Click::Quit => "cannot end",
    };
    let hint = error.hint().unwrap_or("see: journalctl -u sluiced");
    Message {
        topic: Topic::Answer,
        summary: format!("Sluice {what}"),
        body: format!("{error}\nnext: {hint}"),
    }
}

/// Why it is as it is. What the rules look at and found nothing in is left out.
#[must_use]
pub fn of_explanation(said: &Explanation) -> Message {
    let detail = if said.detail.is_empty() { String::new() } else { format!(": {}", said.detail) };
    // Summaries are cut to one short line; a sentence is too long for that.
    let mut lines = vec![
        said.sentence.clone(),
        format!("rule: {}", said.rule.name()),
        format!("progress: {}{detail}", said.progress),
        format!("last: {}", said.last_event),
    ];
    let inputs = said.inputs.iter().filter(|input| !matches!(&*input.value, "no" | "none"));
    lines.extend(inputs.map(|input| format!("{}: {}", input.name, input.value)));
    Message { topic: Topic::Answer, summary: "Sluice: why".to_owned(), body: lines.join("\n") }
}

/// Keeps notices from becoming a flood. Answers to clicks are not counted.
#[derive(Debug, Default)]
pub struct Throttle {
    said: Vec<(Duration, Topic, String)>,
}

impl Throttle {
    /// The message if it is to be said now; the last that is for a while says so.
    pub fn pass(&mut self, now: Duration, mut message: Message) -> Option<Message> {
        if message.topic == Topic::Answer {
            return Some(message);
        }
        self.said.retain(|(at, ..)| now.saturating_sub(*at) < SAME);
        if self.said.iter().any(|(_, _, text)| *text == message.body) {
            return None;
        }
        let is_recent = |at: Duration| now.saturating_sub(at) < WINDOW;
        let recent =
            self.said.iter().filter(|(at, topic, _)| *topic == message.topic && is_recent(*at));
        let recent = recent.count();
        if recent >= MOST {
            return None;
        }
        self.said.push((now, message.topic, message.body.clone()));
        if recent + 1 == MOST {
            message.body.push_str("\nFor a while no more is shown here: journalctl -u sluiced");
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::arbiter::{Input, Rule};
    use crate::engine::error::Kind;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_refusal_says_what_failed_and_the_next_step() {
        let error = Error::new(Kind::Denied, "org.sluice.toggle is refused: polkit says no")
            .with_hint("ask as root");
        let message = of_error(Click::Disable, &error);
        assert_eq!(message.summary, "Sluice cannot switch off");
        let body = "org.sluice.toggle is refused: polkit says no\nnext: ask as root";
        assert_eq!(message.body, body);
        let message = of_error(Click::Why, &Error::new(Kind::Io, "the bus failed"));
        assert!(message.body.contains("next: see: journalctl"), "{message:?}");
    }

    #[test]
    fn an_explanation_leaves_out_what_does_not_matter() {
        let input = |name: &str, value: &str| Input { name: name.into(), value: value.into() };
        let message = of_explanation(&Explanation {
            goal: "closed".to_owned(),
            goal_bytes: None,
            rule: Rule::Battery,
            sentence: "no GPU memory".to_owned(),
            progress: "waiting".to_owned(),
            detail: "a GPU failed".to_owned(),
            last_event: "the power changed".to_owned(),
            inputs: vec![input("power", "battery"), input("GPU failed", "no")],
        });
        assert_eq!(message.summary, "Sluice: why");
        let lines: Vec<&str> = message.body.lines().collect();
        let expected = [
            "no GPU memory",
            "rule: battery",
            "progress: waiting: a GPU failed",
            "last: the power changed",
            "power: battery",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_same_is_not_said_again_soon() {
        let mut throttle = Throttle::default();
        let notice = || of_notice(true, "no room");
        assert_eq!(throttle.pass(Duration::ZERO, notice()), Some(notice()));
        assert_eq!(throttle.pass(29 * MINUTE, notice()), None);
        assert_eq!(throttle.pass(30 * MINUTE, notice()), Some(notice()));
    }

    #[test]
    fn a_flood_ends_with_a_word_and_leaves_faults_room() {
        let mut throttle = Throttle::default();
        let mut pass = |at, urgent, text: &str| throttle.pass(at, of_notice(urgent, text));
        let flood: Vec<_> =
            (0..100).filter_map(|n| pass(MINUTE, false, &format!("change {n}"))).collect();
        assert_eq!(flood.len(), MOST);
        assert!(flood[MOST - 1].body.contains("no more is shown here"), "{flood:?}");
        assert!(pass(MINUTE, true, "GPU memory failed").is_some());
        assert!(pass(MINUTE + WINDOW, false, "later").is_some());
        let answer = || of_error(Click::Why, &Error::new(Kind::Io, "no"));
        assert!((0..100).all(|_| throttle.pass(MINUTE, answer()).is_some()));
    }
}
