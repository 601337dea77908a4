// SPDX-License-Identifier: MIT OR Apache-2.0
//! `fake-cuda-ctl`: makes, shows and changes the fake driver's control file,
//! also under a program that is running on it.

use std::path::Path;
use std::process::ExitCode;

use fake_cuda::CALLS;
use fake_cuda::control::{ALL, Control, VARIABLE, Word, omit_symbol};

const HELP: &str = "\
fake-cuda-ctl: steers the fake CUDA driver by its control file

usage:
  fake-cuda-ctl FILE create [WORD=VALUE]...   make it anew: one device of 1 GiB, healthy
  fake-cuda-ctl FILE set WORD=VALUE...        change words
  fake-cuda-ctl FILE get [WORD]...            show words (all that are not 0)
  fake-cuda-ctl words                         name all words, and their first values
  fake-cuda-ctl omit LIBRARY SYMBOL NEW       copy the library without that symbol

VALUE is a decimal number, with K, M or G for 2^10, 2^20, 2^30; for call-fails the
name of a function, as in cuMemCreate.
";

fn number(word: Word, text: &str) -> Result<u64, String> {
    if word == Word::CallFails
        && let Some((call, _)) = CALLS.iter().find(|(_, name)| *name == text)
    {
        return Ok(*call as u64);
    }
    let (digits, shift) = match text.chars().last() {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let value: Option<u64> = digits.parse().ok();
    value
        .and_then(|value| value.checked_mul(1 << shift))
        .ok_or_else(|| format!("value {text:?} is no number; write 3 or 64M"))
}

fn word(name: &str) -> Result<Word, String> {
    let found = ALL.iter().find(|(_, known, _)| *known == name);
    found.map(|(word, ..)| *word).ok_or_else(|| format!("no word {name:?}; fake-cuda-ctl words"))
}

fn set(control: Control, changes: &[String]) -> Result<(), String> {
    let mut parsed = Vec::new();
    for change in changes {
        let (name, value) =
            change.split_once('=').ok_or_else(|| format!("{change:?}: write WORD=VALUE"))?;
        let word = word(name)?;
        parsed.push((word, number(word, value)?));
    }
    for (word, value) in parsed {
        control.set(word, value);
    }
    Ok(())
}

fn run(arguments: &[String]) -> Result<(), String> {
    let open = |file: &str| {
        Control::open(Path::new(file)).map_err(|error| format!("{file} ({VARIABLE}): {error}"))
    };
    match arguments {
        [verb] if verb == "words" => {
            for (_, name, first) in ALL {
                println!("{name}={first}");
            }
            Ok(())
        }
        [verb, from, symbol, to] if verb == "omit" => {
            omit_symbol(Path::new(from), symbol, Path::new(to)).map_err(|error| error.to_string())
        }
        [file, verb, changes @ ..] if verb == "create" => {
            let control =
                Control::create(Path::new(file)).map_err(|error| format!("{file}: {error}"))?;
            set(control, changes)
        }
        [file, verb, changes @ ..] if verb == "set" && !changes.is_empty() => {
            set(open(file)?, changes)
        }
        [file, verb, names @ ..] if verb == "get" => {
            let control = open(file)?;
            for name in names {
                println!("{name}={}", control.get(word(name)?));
            }
            for (word, name, _) in ALL.iter().filter(|_| names.is_empty()) {
                let value = control.get(*word);
                if value != 0 {
                    println!("{name}={value}");
                }
            }
            Ok(())
        }
        _ => Err(format!("wrong usage\n{HELP}")),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fake-cuda-ctl: {error}");
            ExitCode::from(2)
        }
    }
}
