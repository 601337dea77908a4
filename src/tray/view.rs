// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tray shows and offers, from what is known. Pure: no bus, no clock.

use crate::engine::arbiter::Rule;
use crate::engine::units::ByteLen;
use crate::engine::view::ControlState;

/// Characters of a line in the menu.
const WIDTH: usize = 72;

/// The GPU's memory, for whoever sits at the desktop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lease {
    /// Not asked for.
    #[default]
    None,
    /// Asked for; not all of it is given back yet.
    Asked,
    /// Given back.
    Held {
        /// Whole minutes until it is lent again, rounded up.
        minutes_left: u64,
    },
}

/// All that the picture is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What sluiced says; `None`: it does not run.
    pub state: Option<Box<ControlState>>,
    /// Bytes of swap in use and in all; `None`: none is switched on.
    pub swap: Option<(u64, u64)>,
    /// This desktop's lease.
    pub lease: Lease,
    /// For how long the menu offers one, in minutes.
    pub offered_minutes: u64,
}

/// What a click asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Click {
    /// Lend GPU memory.
    Enable,
    /// Switch the swap off.
    Disable,
    /// Take the GPU's memory for a while.
    TakeGpu,
    /// End that, and a suspension.
    LendAgain,
    /// Explain.
    Why,
    /// End the tray.
    Quit,
}

/// One line of the menu. Their number never changes, so that a menu that is open
/// stays as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// To read only.
    Line(String),
    /// A line between groups.
    Separator,
    /// On or off.
    Switch {
        /// Its text.
        label: &'static str,
        /// Which of them.
        on: bool,
    },
    /// Something to do.
    Button {
        /// Its text.
        label: String,
        /// What it does.
        click: Click,
        /// Whether it can be clicked.
        enabled: bool,
    },
}

/// The icons, by what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icon {
    /// Nothing of how it is: whose it is.
    Plain,
    /// GPU memory is lent, or may be.
    On,
    /// Nothing is lent: switched off, or nobody does it.
    Off,
    /// None for a while: on battery, suspended, or taken.
    Paused,
    /// Something failed.
    Fault,
}

impl Icon {
    /// Its name in the icon theme.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "sluice",
            Self::On => "sluice-on",
            Self::Off => "sluice-off",
            Self::Paused => "sluice-paused",
            Self::Fault => "sluice-fault",
        }
    }
}

/// What is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The icon.
    pub icon: Icon,
    /// The title, and the tooltip's.
    pub title: String,
    /// The tooltip's text and the head of the menu.
    pub lines: [String; 3],
    /// The menu.
    pub menu: Vec<Entry>,
}

/// What is shown of what is known.
#[must_use]
pub fn picture(seen: &Seen) -> Picture {
    let lines = lines(seen);
    Picture { icon: icon(seen), title: title(seen), menu: menu(seen, &lines), lines }
}

fn icon(seen: &Seen) -> Icon {
    let Some(state) = &seen.state else { return Icon::Off };
    let rests = [Rule::Battery, Rule::Suspended, Rule::Sleep];
    if state.faulty || state.progress == "failed" {
        Icon::Fault
    } else if !state.enabled {
        Icon::Off
    } else if rests.iter().any(|rule| rule.name() == state.rule) {
        Icon::Paused
    } else if !state.running {
        Icon::Off
    } else if state.target_bytes == 0 {
        Icon::Paused
    } else {
        Icon::On
    }
}

fn title(seen: &Seen) -> String {
    let what = match &seen.state {
        None => "sluiced does not run".to_owned(),
        Some(state) if state.faulty => "GPU memory failed".to_owned(),
        Some(state) if !state.enabled => "off".to_owned(),
        Some(state) if !state.running => "no store runs".to_owned(),
        Some(state) => format!("{} of GPU memory lent", ByteLen(state.held_bytes)),
    };
    format!("Sluice: {what}")
}

fn lines(seen: &Seen) -> [String; 3] {
    let Some(state) = &seen.state else {
        let lines = [
            // Beside the title in the tooltip, alone in the menu.
            "Nobody decides what is lent",
            "next: systemctl start sluiced",
            "A store that runs goes on as it was told last",
        ];
        return lines.map(str::to_owned);
    };
    let rule = match (state.is_settled(), state.detail.as_str()) {
        (true, _) => state.sentence.clone(),
        (false, "") => format!("{} ({})", state.sentence, state.progress),
        (false, detail) => format!("{} ({}: {detail})", state.sentence, state.progress),
    };
    let [held, target, full] =
        [state.held_bytes, state.target_bytes, state.full_bytes].map(ByteLen);
    let swap = match seen.swap {
        Some((used, size)) => format!("Swap used: {} of {}", ByteLen(used), ByteLen(size)),
        None => "Swap used: none is switched on".to_owned(),
    };
    [rule, format!("GPU memory lent: {held}; target {target} of {full}"), swap]
}

fn menu(seen: &Seen, lines: &[String; 3]) -> Vec<Entry> {
    let state = seen.state.as_ref();
    let could_take = state.is_some_and(|s| s.enabled && s.running && s.full_bytes > s.leased_bytes);
    let (take, is_free) = match seen.lease {
        Lease::None => (format!("Give me the GPU for {}", span(seen.offered_minutes)), true),
        Lease::Asked => ("The GPU's memory is being given back".to_owned(), false),
        Lease::Held { minutes_left } => {
            (format!("The GPU is yours for {}", span(minutes_left)), false)
        }
    };
    let is_taken = !is_free || state.is_some_and(|state| state.suspended);
    let button =
        |label: &str, click, enabled| Entry::Button { label: label.to_owned(), click, enabled };
    let mut menu: Vec<Entry> = lines.iter().map(|line| Entry::Line(short(line))).collect();
    menu.extend([
        Entry::Separator,
        Entry::Switch {
            label: "Lend idle GPU memory as swap",
            on: state.is_some_and(|state| state.enabled),
        },
        button(&take, Click::TakeGpu, is_free && could_take),
        button("Lend it again now", Click::LendAgain, is_taken),
        Entry::Separator,
        button("Why?", Click::Why, state.is_some()),
        button("Quit", Click::Quit, true),
    ]);
    menu
}

/// A menu is as wide as its longest line; the tooltip and "Why?" have all of it.
fn short(line: &str) -> String {
    match line.char_indices().nth(WIDTH) {
        None => line.to_owned(),
        Some((end, _)) => format!("{}…", line[..end].trim_end()),
    }
}

/// Minutes, as they are said.
fn span(minutes: u64) -> String {
    match minutes {
        60 => "an hour".to_owned(),
        0 | 1 => "a minute".to_owned(),
        minutes if minutes % 60 == 0 => format!("{} hours", minutes / 60),
        minutes => format!("{minutes} minutes"),
    }
}

/// For texts in which tags would count: tooltips and notifications.
#[must_use]
pub fn without_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// For labels of menus, in which one underscore marks a key.
#[must_use]
pub fn without_keys(text: &str) -> String {
    text.replace('_', "__")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn lending() -> ControlState {
        ControlState {
            goal: "full".to_owned(),
            rule: Rule::Configured.name().to_owned(),
            sentence: "as configured: nothing but the configuration bounds it".to_owned(),
            progress: "settled".to_owned(),
            enabled: true,
            running: true,
            target_bytes: 8 * GIB,
            held_bytes: 3 * GIB,
            full_bytes: 8 * GIB,
            ..ControlState::default()
        }
    }

    fn seen(state: ControlState) -> Seen {
        Seen {
            state: Some(Box::new(state)),
            swap: Some((GIB, 12 * GIB)),
            lease: Lease::None,
            offered_minutes: 60,
        }
    }

    /// Whether a click is on offer; `None`: it is not in the menu.
    fn offered(seen: &Seen, wanted: Click) -> Option<bool> {
        picture(seen).menu.iter().find_map(|entry| match entry {
            Entry::Button { click, enabled, .. } if *click == wanted => Some(*enabled),
            _ => None,
        })
    }

    #[test]
    fn while_it_lends_it_says_how_much_and_why() {
        let picture = picture(&seen(lending()));
        assert_eq!(
            (picture.icon, picture.title.as_str()),
            (Icon::On, "Sluice: 3 GiB of GPU memory lent")
        );
        assert_eq!(
            picture.lines,
            [
                "as configured: nothing but the configuration bounds it",
                "GPU memory lent: 3 GiB; target 8 GiB of 8 GiB",
                "Swap used: 1 GiB of 12 GiB",
            ]
        );
        assert_eq!(picture.menu[0], Entry::Line(picture.lines[0].clone()));
    }

    #[test]
    fn each_state_has_its_icon() {
        let rule = |rule: Rule| ControlState { rule: rule.name().to_owned(), ..lending() };
        for (state, icon) in [
            (lending(), Icon::On),
            (rule(Rule::Battery), Icon::Paused),
            (rule(Rule::Suspended), Icon::Paused),
            (rule(Rule::Leases), Icon::On),
            (ControlState { target_bytes: 0, ..rule(Rule::Leases) }, Icon::Paused),
            // Without a spill a battery stop is an off.
            (ControlState { running: false, ..rule(Rule::Battery) }, Icon::Paused),
            (ControlState { running: false, ..lending() }, Icon::Off),
            (ControlState { enabled: false, ..rule(Rule::ManualOff) }, Icon::Off),
            (ControlState { faulty: true, ..rule(Rule::Battery) }, Icon::Fault),
            (ControlState { progress: "failed".to_owned(), ..lending() }, Icon::Fault),
        ] {
            assert_eq!(picture(&seen(state.clone())).icon, icon, "{state:?}");
        }
    }

    #[test]
    fn what_is_not_settled_says_so_with_its_reason() {
        let state = |progress: &str, detail: &str| ControlState {
            progress: progress.to_owned(),
            detail: detail.to_owned(),
            ..lending()
        };
        let first = |state| picture(&seen(state)).lines[0].clone();
        assert!(first(state("moving", "")).ends_with("bounds it (moving)"));
        assert!(first(state("failed", "no room")).ends_with("bounds it (failed: no room)"));
    }

    #[test]
    fn a_long_reason_does_not_make_the_menu_as_wide_as_the_screen() {
        let detail = "ü".repeat(300);
        let failed = seen(ControlState { progress: "failed".to_owned(), detail, ..lending() });
        let shown = picture(&failed);
        let Entry::Line(first) = &shown.menu[0] else { panic!("{shown:?}") };
        assert!(shown.lines[0].starts_with(first.strip_suffix('…').unwrap()), "{first}");
        assert_eq!(first.chars().count(), WIDTH + 1);
    }

    #[test]
    fn without_sluiced_the_switch_is_left_and_the_next_step_is_said() {
        let absent = Seen { state: None, ..seen(lending()) };
        let shown = picture(&absent);
        assert_eq!((shown.icon, shown.title.as_str()), (Icon::Off, "Sluice: sluiced does not run"));
        assert_eq!(shown.lines[1], "next: systemctl start sluiced");
        // The tooltip has the title above them.
        assert!(shown.lines.iter().all(|line| !line.contains("does not run")), "{shown:?}");
        assert!(shown.menu.iter().any(|entry| matches!(entry, Entry::Switch { on: false, .. })));
        assert_eq!(offered(&absent, Click::Why), Some(false));
    }

    #[test]
    fn the_gpu_can_be_taken_once_and_given_back() {
        let with = |lease| Seen { lease, ..seen(lending()) };
        let offers = |seen: &Seen| (offered(seen, Click::TakeGpu), offered(seen, Click::LendAgain));
        assert_eq!(offers(&with(Lease::None)), (Some(true), Some(false)));
        assert_eq!(offers(&with(Lease::Asked)), (Some(false), Some(true)));
        let held = with(Lease::Held { minutes_left: 43 });
        assert_eq!(offers(&held), (Some(false), Some(true)));
        let label = "The GPU is yours for 43 minutes".to_owned();
        assert!(picture(&held).menu.iter().any(|entry| matches!(
            entry,
            Entry::Button { label: found, .. } if *found == label
        )));
        // Nothing is left to take, nothing runs, or it is off.
        for state in [
            ControlState { leased_bytes: 8 * GIB, ..lending() },
            ControlState { running: false, ..lending() },
            ControlState { enabled: false, ..lending() },
        ] {
            assert_eq!(offered(&seen(state), Click::TakeGpu), Some(false));
        }
        let suspended = seen(ControlState { suspended: true, ..lending() });
        assert_eq!(offers(&suspended).1, Some(true));
    }

    #[test]
    fn an_open_menu_keeps_its_entries() {
        let asked = Seen { lease: Lease::Asked, ..seen(lending()) };
        let all = [Seen::default(), seen(lending()), asked];
        let kinds = |seen: &Seen| -> Vec<_> {
            picture(seen).menu.iter().map(std::mem::discriminant).collect()
        };
        assert!(all.iter().all(|seen| kinds(seen) == kinds(&all[0])));
    }

    #[test]
    fn minutes_are_said_as_people_say_them() {
        let said = [0, 1, 2, 59, 60, 61, 120].map(span);
        let expected =
            ["a minute", "a minute", "2 minutes", "59 minutes", "an hour", "61 minutes", "2 hours"];
        assert_eq!(said, expected);
    }

    #[test]
    fn texts_of_others_are_shown_as_they_are() {
        assert_eq!(without_markup("a <b> & c"), "a &lt;b&gt; &amp; c");
        assert_eq!(without_keys("control.idle_target"), "control.idle__target");
    }
}
