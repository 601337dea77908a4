// SPDX-License-Identifier: MIT OR Apache-2.0
//! One TOML table being taken apart: each key is asked for once by its type,
//! and what nobody asked for is an unknown key. Problems are collected, so
//! that a file's mistakes all show at once.

use std::fmt::Display;
use std::ops::{Range, RangeInclusive};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::Problem;
use crate::engine::units::ByteLen;

/// A value and its place in the file; no place if it is a default.
#[derive(Clone, Debug)]
pub(super) struct Placed<T> {
    pub value: T,
    pub span: Option<Range<usize>>,
}

/// A section of the file under its name.
pub(super) struct Section<'t, 'i> {
    name: &'t str,
    text: &'t str,
    table: Option<&'t DeTable<'i>>,
    is_value: bool,
}

impl<'t, 'i> Section<'t, 'i> {
    /// The section called `name` of the whole file `root`.
    pub fn find(
        root: &'t DeTable<'i>,
        text: &'t str,
        name: &'t str,
        problems: &mut Vec<Problem>,
    ) -> Self {
        let table = root.get(name).and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                problems.push(Problem {
                    span: Some(value.span()),
                    message: format!(
                        "{name} = {} is a value; write a section: [{name}]",
                        &text[value.span()]
                    ),
                });
            }
            table
        });
        Self { name, text, table, is_value: table.is_none() && root.contains_key(name) }
    }

    /// A table inside a section, under its full name.
    pub fn of(name: &'t str, text: &'t str, table: &'t DeTable<'i>) -> Self {
        Self { name, text, table: Some(table), is_value: false }
    }

    /// Whether the file has the section.
    pub fn is_present(&self) -> bool {
        self.table.is_some()
    }

    /// Whether the file has a plain value in its place, which is a problem already.
    pub fn is_value(&self) -> bool {
        self.is_value
    }

    /// Reports every key that is not one of `known`, with the nearest that is.
    pub fn refuse_others(&self, known: &[&str], problems: &mut Vec<Problem>) {
        for key in self.table.into_iter().flat_map(DeTable::keys) {
            if !known.contains(&key.get_ref().as_ref()) {
                let full = format!("{}.{}", self.name, key.get_ref());
                problems.push(Problem {
                    span: Some(key.span()),
                    message: unknown("key", &full, key.get_ref(), known, |nearest| {
                        format!("{}.{nearest}", self.name)
                    }),
                });
            }
        }
    }

    /// Its own tables under their full names, `tenants.llm`; a value in the place of
    /// one is reported.
    pub fn tables(&self, problems: &mut Vec<Problem>) -> Vec<(Placed<String>, &'t DeTable<'i>)> {
        let mut found = Vec::new();
        for (key, value) in self.table.into_iter().flatten() {
            let full = format!("{}.{}", self.name, key.get_ref());
            match value.get_ref().as_table() {
                Some(table) => found.push((Placed { value: full, span: Some(key.span()) }, table)),
                None => problems.push(Problem {
                    span: Some(value.span()),
                    message: format!("{full} is a value; write a section: [{full}]"),
                }),
            }
        }
        found
    }

    fn get(&self, key: &str) -> Option<&'t Spanned<DeValue<'i>>> {
        self.table.and_then(|table| table.get(key))
    }

    /// A problem with the value of `key` at `span`: `section.key = value: why`.
    pub fn problem(&self, key: &str, span: Option<Range<usize>>, why: &str) -> Problem {
        let full = format!("{}.{key}", self.name);
        let message = match &span {
            Some(span) => format!("{full} = {}: {why}", &self.text[span.clone()]),
            None => format!("{full}: {why}"),
        };
        Problem { span, message }
    }

    /// A problem with the section as a whole, shown at its name.
    pub fn problem_with_itself(&self, root: &DeTable<'i>, why: &str) -> Problem {
        let span = root.keys().find(|key| key.get_ref() == self.name).map(Spanned::span);
        Problem { span, message: format!("[{}]: {why}", self.name) }
    }

    /// Takes `key` through `convert`, which says what would be valid when it refuses.
    pub fn take<T>(
        &self,
        key: &str,
        problems: &mut Vec<Problem>,
        convert: impl FnOnce(&DeValue<'i>) -> Result<T, String>,
    ) -> Option<Placed<T>> {
        let value = self.get(key)?;
        match convert(value.get_ref()) {
            Ok(converted) => Some(Placed { value: converted, span: Some(value.span()) }),
            Err(why) => {
                problems.push(self.problem(key, Some(value.span()), &why));
                None
            }
        }
    }

    /// A boolean, or its default.
    pub fn boolean(&self, key: &str, default: bool, problems: &mut Vec<Problem>) -> bool {
        self.take(key, problems, |value| {
            value.as_bool().ok_or_else(|| "write true or false, without quotes".to_owned())
        })
        .map_or(default, |placed| placed.value)
    }

    /// A whole number within `valid`.
    pub fn integer<N: TryFrom<i64> + PartialOrd + Display>(
        &self,
        key: &str,
        valid: RangeInclusive<N>,
        problems: &mut Vec<Problem>,
    ) -> Option<N> {
        self.take(key, problems, |value| {
            value
                .as_integer()
                .and_then(|number| i64::from_str_radix(number.as_str(), number.radix()).ok())
                .and_then(|number| N::try_from(number).ok())
                .filter(|number| valid.contains(number))
                .ok_or_else(|| {
                    let (low, high) = (valid.start(), valid.end());
                    format!("write a whole number from {low} to {high}, without quotes")
                })
        })
        .map(|placed| placed.value)
    }

    /// A size such as `"8G"`.
    pub fn size(&self, key: &str, problems: &mut Vec<Problem>) -> Option<Placed<ByteLen>> {
        self.take(key, problems, |value| {
            let valid = "write a whole number and K, M, G or T in quotes, e.g. \"8G\"";
            let text = value.as_str().ok_or(valid)?;
            text.parse().map_err(|_| valid.to_owned())
        })
    }

    /// One of the names in `valid`, by its place there.
    pub fn choice(
        &self,
        key: &str,
        valid: &[&str],
        problems: &mut Vec<Problem>,
    ) -> Option<Placed<usize>> {
        self.take(key, problems, |value| {
            value
                .as_str()
                .and_then(|text| valid.iter().position(|name| *name == text))
                .ok_or_else(|| format!("write one of \"{}\"", valid.join("\", \"")))
        })
    }
}

/// Says that `full` is unknown, which known name is nearest, or all of them.
pub(super) fn unknown(
    what: &str,
    full: &str,
    name: &str,
    known: &[&str],
    spell: impl Fn(&str) -> String,
) -> String {
    let nearest = known.iter().min_by_key(|candidate| distance(name, candidate));
    match nearest {
        // Two edits, or a third of the name: a slip of the hand, not another word.
        Some(nearest) if distance(name, nearest) <= (name.len() / 3).max(2) => {
            format!("unknown {what} {full}; did you mean {}?", spell(nearest))
        }
        _ => format!("unknown {what} {full}; valid here: {}", known.join(", ")),
    }
}

/// Levenshtein's distance: insertions, deletions and substitutions between two names.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
