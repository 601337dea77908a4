// SPDX-License-Identifier: MIT OR Apache-2.0
//! `sluice top` on a terminal. One thread looks, so that a store that does not
//! answer holds up no key; the other waits for looks, keys and signals at once.

use std::io::{IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use crate::cli::args::TopArgs;
use crate::cli::top::{self, Look, Seen, draw};
use crate::cli::{self, Ways};
use crate::host::signals::Signals;

/// Ends it: q, and the end of input by hand.
const QUIT: &[u8] = b"qQ\x04";
/// Another screen, and no cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The size of a terminal that does not know its own.
const SIZE: (usize, usize) = (80, 24);

/// Shows the store until it is told to end.
pub fn run(args: &TopArgs, ways: Ways) -> Result<ExitCode> {
    let can_draw = std::env::var_os("TERM").is_some_and(|term| term != "dumb");
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if args.json || args.count.is_some() || !can_draw || !is_terminal {
        return top::print(args, &ways);
    }
    let (mut watch, mut seen) = top::begin(args, &ways)?;
    // Before the first thread: it inherits that it is not interrupted.
    let signals = Signals::block()?;
    let (looks, mut bell) = look_on(args, ways)?;
    let terminal = Terminal::take()?;
    loop {
        terminal.draw(&seen)?;
        let stdin = std::io::stdin();
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&bell, PollFlags::IN),
            PollFd::new(&signals, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for the terminal"),
        }
        let [keys, rung, _] = fds.map(|fd| !fd.revents().is_empty());
        // That the window has another size is a signal too, and swallowed here.
        if signals.take() || (keys && is_over()?) {
            return Ok(ExitCode::SUCCESS);
        }
        if rung {
            let _ = bell.read(&mut [0; 64]);
            for look in looks.try_iter() {
                seen = watch.see(look);
            }
        }
    }
}

/// Looks once in an interval; the bell can be waited for.
fn look_on(args: &TopArgs, ways: Ways) -> Result<(Receiver<Look>, UnixStream)> {
    let (send, looks) = channel();
    let (mut ring, bell) = UnixStream::pair().context("no sockets for sluice top")?;
    let (socket, interval) = (args.socket.clone(), args.interval);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            // Nobody listens any more: the program ends.
            if send.send(Look::new(&socket, &ways)).is_err() || ring.write_all(&[0]).is_err() {
                return;
            }
        }
    });
    Ok((looks, bell))
}

/// Takes the keys that are there.
fn is_over() -> Result<bool> {
    let mut keys = [0; 64];
    // Not through a buffer, which poll knows nothing of.
    match rustix::io::read(std::io::stdin(), &mut keys) {
        Ok(0) => Ok(true),
        Ok(count) => Ok(keys[..count].iter().any(|key| QUIT.contains(key))),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error).context("cannot read the terminal"),
    }
}

/// A terminal that shows a screen of ours and passes keys on at once; as before
/// when dropped.
struct Terminal {
    before: Termios,
    with_colours: bool,
}

impl Terminal {
    fn take() -> Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("cannot read the terminal's modes")?;
        let mut modes = before.clone();
        modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(std::io::stdin(), OptionalActions::Now, &modes)
            .context("cannot set the terminal's modes")?;
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let terminal = Self { before, with_colours: !no_color };
        cli::print(ENTER)?;
        Ok(terminal)
    }

    fn draw(&self, seen: &Seen) -> Result<()> {
        let (width, height) = match tcgetwinsize(std::io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (size.ws_col.into(), size.ws_row.into())
            }
            _ => SIZE,
        };
        cli::print(&draw::paint(&draw::screen(seen, width, height), self.with_colours))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing any more.
        let _ = cli::print(LEAVE);
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
