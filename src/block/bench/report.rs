// SPDX-License-Identifier: MIT OR Apache-2.0
//! Results: a round's figures, medians over rounds, the ratio of two targets,
//! as data for JSON and as a table for people.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::Tally;
use super::histogram::Histogram;
use super::plan::{Pace, Pattern, Plan};
use crate::engine::units::ByteLen;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Half are no longer than this.
    pub p50_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1000.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What one round gave, or the medians of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Round {
    /// Requests answered a second.
    pub iops: f64,
    /// Payload moved a second, in bytes.
    pub bytes_per_second: f64,
    /// Over all requests.
    pub latency: Latency,
    /// Over reads alone; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_latency: Option<Latency>,
    /// Over writes alone; absent if there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_latency: Option<Latency>,
    /// Reads answered.
    pub reads: u64,
    /// Writes answered.
    pub writes: u64,
    /// Reads whose contents were compared.
    pub verified: u64,
    /// Compared, and wrong.
    pub mismatches: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// The first things that were wrong, in words.
    pub details: Vec<String>,
}

/// More writes than asked for by so many in a hundred are worth a word.
const NOTABLE_PERCENT: u64 = 5;

/// All rounds of one target.
#[derive(Clone, Debug, Serialize)]
pub struct TargetResult {
    /// As the person named it.
    pub target: String,
    /// In order.
    pub rounds: Vec<Round>,
    /// Each figure's median; counts are sums.
    pub median: Round,
}

/// First target over second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// Of the rates; above 1 the first is faster.
    pub iops: f64,
    /// Of the latencies; below 1 the first is faster.
    pub p50: f64,
    /// See `p50`.
    pub p99: f64,
    /// See `p50`.
    pub p999: f64,
}

/// A line of the table: its name, requests and bytes a second, latencies.
type Row = (String, Option<(f64, f64)>, Latency);

/// Everything measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was asked of each target, in words.
    pub work: String,
    /// How many of a hundred requests were to be writes.
    pub write_percent: u32,
    /// One, or two in the order given.
    pub results: Vec<TargetResult>,
    /// Of the medians, if there are two targets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Ratio>,
}

impl Latency {
    fn of(histogram: &Histogram) -> Self {
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        Self {
            p50_us: us(histogram.percentile(500)),
            p99_us: us(histogram.percentile(990)),
            p999_us: us(histogram.percentile(999)),
            max_us: us(histogram.max()),
        }
    }
}

impl Round {
    /// From what the workers counted in `seconds`.
    #[must_use]
    pub fn new(tally: &Tally, seconds: f64, block_bytes: u32) -> Self {
        let mut all = tally.reads.clone();
        all.merge(&tally.writes);
        let iops = all.total() as f64 / seconds;
        let some = |histogram: &Histogram| (histogram.total() > 0).then(|| Latency::of(histogram));
        Self {
            iops,
            bytes_per_second: iops * f64::from(block_bytes),
            latency: Latency::of(&all),
            read_latency: some(&tally.reads),
            write_latency: some(&tally.writes),
            reads: tally.reads.total(),
            writes: tally.writes.total(),
            verified: tally.verified,
            mismatches: tally.mismatches,
            errors: tally.errors,
            details: tally.details.clone(),
        }
    }

    fn median(rounds: &[Self]) -> Self {
        let figure = |get: fn(&Self) -> f64| median(rounds.iter().map(get).collect());
        let latency = |get: fn(&Self) -> Option<Latency>| {
            let all: Vec<Latency> = rounds.iter().filter_map(get).collect();
            let figure = |get: fn(&Latency) -> f64| median(all.iter().map(get).collect());
            (!all.is_empty()).then(|| Latency {
                p50_us: figure(|latency| latency.p50_us),
                p99_us: figure(|latency| latency.p99_us),
                p999_us: figure(|latency| latency.p999_us),
                max_us: figure(|latency| latency.max_us),
            })
        };
        let sum = |get: fn(&Self) -> u64| rounds.iter().map(get).sum();
        Self {
            iops: figure(|round| round.iops),
            bytes_per_second: figure(|round| round.bytes_per_second),
            latency: latency(|round| Some(round.latency)).unwrap_or_default(),
            read_latency: latency(|round| round.read_latency),
            write_latency: latency(|round| round.write_latency),
            reads: sum(|round| round.reads),
            writes: sum(|round| round.writes),
            verified: sum(|round| round.verified),
            mismatches: sum(|round| round.mismatches),
            errors: sum(|round| round.errors),
            details: rounds.iter().flat_map(|round| round.details.clone()).collect(),
        }
    }
}

/// The middle value, or the mean of the two in the middle; 0 of nothing.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

impl Report {
    /// Without results yet.
    #[must_use]
    pub fn new(plan: &Plan) -> Self {
        let results = plan
            .names
            .iter()
            .map(|name| TargetResult {
                target: name.clone(),
                rounds: Vec::with_capacity(plan.rounds as usize),
                median: Round::default(),
            })
            .collect();
        Self { work: describe(plan), write_percent: plan.write_percent, results, ratio: None }
    }

    /// Computes medians and the ratio from the rounds.
    pub fn conclude(&mut self) {
        for result in &mut self.results {
            result.median = Round::median(&result.rounds);
        }
        if let [first, second] = &self.results[..] {
            let (a, b) = (&first.median, &second.median);
            self.ratio = Some(Ratio {
                iops: a.iops / b.iops,
                p50: a.latency.p50_us / b.latency.p50_us,
                p99: a.latency.p99_us / b.latency.p99_us,
                p999: a.latency.p999_us / b.latency.p999_us,
            });
        }
    }

    /// Whether everything read was right and nothing failed.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.results.iter().all(|result| result.median.mismatches + result.median.errors == 0)
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = format!("{}\n\n", self.work);
        let names: Vec<String> = self.rows().into_iter().map(|(name, ..)| name).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let _ = writeln!(
            out,
            "{:width$}  {:>9}  {:>8}  {:>9}  {:>9}  {:>9}  {:>9}",
            "", "IOPS", "MB/s", "p50 us", "p99 us", "p99.9 us", "max us"
        );
        for (name, rates, latency) in self.rows() {
            let _ = match rates {
                Some((iops, bytes)) => {
                    write!(out, "{name:width$}  {iops:>9.0}  {:>8.1}", bytes / 1e6)
                }
                None => write!(out, "{name:width$}  {:>9}  {:>8}", "", ""),
            };
            let Latency { p50_us, p99_us, p999_us, max_us } = latency;
            let _ = writeln!(out, "  {p50_us:>9.1}  {p99_us:>9.1}  {p999_us:>9.1}  {max_us:>9.1}");
        }
        if let Some(ratio) = &self.ratio {
            let _ = writeln!(
                out,
                "{:width$}  {:>8.2}x  {:>8}  {:>8.2}x  {:>8.2}x  {:>8.2}x",
                "A / B", ratio.iops, "", ratio.p50, ratio.p99, ratio.p999
            );
        }
        out.push('\n');
        for (letter, result) in ["A", "B"].iter().zip(&self.results) {
            let all = &result.median;
            let label = if self.results.len() > 1 { format!("{letter} = ") } else { String::new() };
            let _ = writeln!(
                out,
                "{label}{}: {} of {} reads checked, {} wrong; {} of {} requests failed",
                result.target,
                all.verified,
                all.reads,
                all.mismatches,
                all.errors,
                all.reads + all.writes
            );
            let requests = all.reads + all.writes;
            let asked = u64::from(self.write_percent);
            if asked > 0 && all.writes * 100 > requests * (asked + NOTABLE_PERCENT) {
                let _ = writeln!(
                    out,
                    "  {} % were writes, since a block is written before it is read; \
                     --fill does that before the clock starts",
                    all.writes * 100 / requests
                );
            }
            if all.verified < all.reads {
                let _ = writeln!(
                    out,
                    "  unchecked reads met blocks that this run never wrote; \
                                       --fill writes them all first"
                );
            }
            for detail in &all.details {
                let _ = writeln!(out, "  {detail}");
            }
        }
        out
    }

    /// The table's rows: name, rates, latencies.
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        let two = self.results.len() > 1;
        let rounds = self.results.first().map_or(0, |result| result.rounds.len());
        if rounds > 1 {
            for number in 0..rounds {
                for (letter, result) in ["A", "B"].iter().zip(&self.results) {
                    let Some(round) = result.rounds.get(number) else { continue };
                    let label = if two { format!("{letter} ") } else { String::new() };
                    let rates = Some((round.iops, round.bytes_per_second));
                    rows.push((format!("{label}round {}", number + 1), rates, round.latency));
                }
            }
        }
        for (letter, result) in ["A", "B"].iter().zip(&self.results) {
            let label = if two { format!("{letter} ") } else { String::new() };
            let what = if rounds > 1 { "median" } else { "all" };
            let median = &result.median;
            let rates = Some((median.iops, median.bytes_per_second));
            rows.push((format!("{label}{what}"), rates, median.latency));
            if let (Some(read), Some(write)) = (median.read_latency, median.write_latency) {
                rows.push((format!("{label}  reads"), None, read));
                rows.push((format!("{label}  writes"), None, write));
            }
        }
        rows
    }
}

fn describe(plan: &Plan) -> String {
    let plural =
        |count: u32, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let order = match plan.pattern {
        Pattern::Random => "random",
        Pattern::Sequential => "sequential",
    };
    let pace = match plan.pace {
        Pace::Full => format!("depth {}", plan.depth),
        Pace::Pause(rest) => format!("one at a time, {} us of rest", rest.as_micros()),
        Pace::Every(interval) => format!("one every {} ms", interval.as_millis()),
    };
    let span = plan.span.map_or("all of it".to_owned(), |span| format!("the first {span}"));
    format!(
        "{}, {pace}, {} {order}, {} % writes, {span}{}, {} of {} s",
        plural(plan.connections, "connection"),
        ByteLen(plan.block_bytes.into()),
        plan.write_percent,
        if plan.fill { ", filled first" } else { "" },
        plural(plan.rounds, "round"),
        plan.seconds
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_middle() {
        let cases = [(vec![], 0.0), (vec![3.0, 1.0, 2.0], 2.0), (vec![4.0, 1.0, 2.0, 3.0], 2.5)];
        for (values, expected) in cases {
            assert!((median(values) - expected).abs() < 1e-9);
        }
    }

    #[test]
    fn one_mismatch_in_any_round_of_any_target_is_not_clean() {
        let clean = Round { iops: 100.0, ..Round::default() };
        let wrong = Round { mismatches: 1, ..clean.clone() };
        let result = |rounds: Vec<Round>| TargetResult {
            target: "t".into(),
            rounds,
            median: Round::default(),
        };
        let mut report = Report {
            work: String::new(),
            write_percent: 50,
            results: vec![
                result(vec![clean.clone(); 3]),
                result(vec![clean.clone(), wrong, clean]),
            ],
            ratio: None,
        };
        report.conclude();
        assert!(!report.is_clean());
        assert!((report.ratio.unwrap().iops - 1.0).abs() < 1e-9);
        report.results.pop();
        assert!(report.is_clean());
    }
}
