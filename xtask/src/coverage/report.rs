//! The figures: lines and branches of the source, reached and in all.
//!
//! The compiler makes many copies of a function: for IPv4 and IPv6, XDP and TC. A line is reached if any copy has
//! reached it. A branch is a line and column with a conditional jump, and has two ways.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write as _};
use std::path::Path;

use anyhow::Result;

use super::lines::{Position, Positions};
use super::rewrite::{Outcome, Rewritten};
use super::source::Functions;

/// What was reached in one file.
#[derive(Debug, Default, PartialEq, Eq)]
struct File {
    /// The lines.
    lines: BTreeMap<u32, bool>,
    /// The branches by line and column.
    branches: BTreeMap<(u32, u32), Branch>,
}

/// The jumps of one place in the source, one for each copy.
#[derive(Debug, Default, PartialEq, Eq)]
struct Branch(Vec<[Way; 2]>);

/// One way of a jump.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    to: String,
    reached: bool,
}

/// All files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    files: BTreeMap<String, File>,
    /// Blocks and jumps without a probe.
    pub unmeasured: usize,
}

/// A part and the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    reached: usize,
    all: usize,
}

/// The shares of lines, of the ways of branches, and of the ways of all jumps.
type Shares = [Share; 3];

impl Report {
    /// Adds a section's code. `counts` tells the instructions of programs that the tests can run.
    pub fn add(
        &mut self,
        code: &Rewritten,
        positions: &Positions,
        passed: &[u8],
        counts: impl Fn(usize) -> bool,
    ) {
        let is_passed = |probe: usize| passed.get(probe).is_some_and(|byte| *byte != 0);
        for block in code.blocks.iter().filter(|block| counts(block.start)) {
            let Some(probe) = block.probe else {
                self.unmeasured += 1;
                continue;
            };
            let carried = at(positions, block.start);
            let inside =
                positions.range(block.start..block.end).filter_map(|(_, position)| position.as_ref());
            for position in carried.into_iter().chain(inside) {
                *self.file(position).lines.entry(position.line).or_default() |= is_passed(probe);
            }
        }
        for ways in code.outcomes.chunk_by(|one, other| one.jump == other.jump) {
            let [one, other] = ways else { continue };
            let Some(from) = at(positions, one.jump).filter(|_| counts(one.jump)) else { continue };
            let way = |outcome: &Outcome| {
                let to = label(at(positions, outcome.to), from);
                outcome.probe.map(|probe| Way { to, reached: is_passed(probe) })
            };
            match (way(one), way(other)) {
                (Some(one), Some(other)) => {
                    let branch = self.file(from).branches.entry((from.line, from.column)).or_default();
                    branch.0.push([one, other]);
                }
                _ => self.unmeasured += 1,
            }
        }
    }

    fn file(&mut self, position: &Position) -> &mut File {
        self.files.entry(position.file.clone()).or_default()
    }

    /// Writes a table of all files in Markdown.
    pub fn table(&self) -> String {
        let row = |name: &str, [lines, branches, copies]: Shares| {
            format!("| {name:<40} | {lines:>19} | {branches:>19} | {copies:>21} |\n")
        };
        let head =
            format!("| {:<40} | {:>19} | {:>19} | {:>21} |\n", "file", "lines", "branches", "in all copies");
        let rule = "|---|---:|---:|---:|\n".to_owned();
        let rows = self.files.iter().map(|(name, file)| row(name, file.shares()));
        let all = self.files.values().map(File::shares).fold(Shares::default(), |all, more| {
            let mut sums = all.into_iter().zip(more).map(|(one, other)| one.and(other));
            std::array::from_fn(|_| sums.next().unwrap_or_default())
        });
        [head, rule].into_iter().chain(rows).chain([row("**all**", all)]).collect()
    }

    /// Writes what was never reached, by function; with the lines on demand.
    pub fn unreached(&self, root: &Path, with_lines: bool) -> Result<String> {
        let mut text = String::new();
        for (name, file) in &self.files {
            let functions = Functions::read(&root.join(name))?;
            let mut found: BTreeMap<&str, Unreached> = BTreeMap::new();
            let around = |line: u32| functions.around(line).unwrap_or("-");
            for (line, reached) in &file.lines {
                let function = found.entry(around(*line)).or_default();
                function.lines.add(*reached);
                function.places.extend((!reached).then(|| line.to_string()));
            }
            for ((line, column), branch) in &file.branches {
                let function = found.entry(around(*line)).or_default();
                function.branches = function.branches.and(branch.share());
                function.places.extend(branch.missing().map(|missing| format!("{line}:{column} {missing}")));
            }
            let found: Vec<_> = found.iter().filter(|(_, function)| !function.places.is_empty()).collect();
            if !found.is_empty() {
                writeln!(text, "{name}")?;
            }
            for (function, unreached) in found {
                let (lines, branches) = (unreached.lines, unreached.branches);
                writeln!(text, "  {function:<40}{lines:>20}{branches:>20}")?;
                if with_lines {
                    unreached.places.iter().try_for_each(|place| writeln!(text, "    {place}"))?;
                }
            }
        }
        Ok(text)
    }
}

/// A function with lines or branches that were not reached.
#[derive(Default)]
struct Unreached {
    lines: Share,
    branches: Share,
    places: Vec<String>,
}

impl File {
    fn shares(&self) -> Shares {
        let branches = self.branches.values().map(Branch::share).fold(Share::default(), Share::and);
        let copies = self.branches.values().flat_map(|branch| &branch.0).flatten();
        [Share::of(self.lines.values()), branches, Share::of(copies.map(|way| &way.reached))]
    }
}

impl Branch {
    /// Returns the jump of which most ways were reached, and whether each one was.
    ///
    /// One copy may go only one way, and another copy only the other. So a way is also reached if another copy has
    /// come to the same line.
    fn best(&self) -> Option<[(&str, bool); 2]> {
        let reached: BTreeSet<&str> =
            self.0.iter().flatten().filter(|way| way.reached).map(|way| way.to.as_str()).collect();
        let judged = self.0.iter().map(|ways| {
            let differ = ways.first().map(|way| &way.to) != ways.last().map(|way| &way.to);
            ways.each_ref().map(|way| {
                let is_reached = way.reached || differ && reached.contains(way.to.as_str());
                (way.to.as_str(), is_reached)
            })
        });
        judged.max_by_key(|ways| ways.iter().filter(|(_, reached)| *reached).count())
    }

    fn share(&self) -> Share {
        self.best().iter().flatten().fold(Share::default(), |mut share, (_, reached)| {
            share.add(*reached);
            share
        })
    }

    /// Says which way was not reached.
    fn missing(&self) -> Option<String> {
        match self.best()? {
            [(_, true), (_, true)] => None,
            [(_, false), (_, false)] => Some("never".to_owned()),
            [(reached, true), (missing, false)] | [(missing, false), (reached, true)] => {
                Some(format!("only to {reached}, not to {missing}"))
            }
        }
    }
}

impl Share {
    fn of<'a>(reached: impl Iterator<Item = &'a bool>) -> Self {
        reached.fold(Self::default(), |mut share, reached| {
            share.add(*reached);
            share
        })
    }

    fn add(&mut self, reached: bool) {
        self.reached += usize::from(reached);
        self.all += 1;
    }

    fn and(self, other: Self) -> Self {
        Self { reached: self.reached + other.reached, all: self.all + other.all }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = 100 * self.reached / self.all.max(1);
        let text = format!("{} of {}, {percent:>3} %", self.reached, self.all);
        f.pad(if self.all == 0 { "-" } else { &text })
    }
}

/// Returns the position of an instruction.
fn at(positions: &Positions, instruction: usize) -> Option<&Position> {
    positions.range(..=instruction).next_back().and_then(|(_, position)| position.as_ref())
}

/// Returns the name of a jump's target: its line, with the file if that is another one.
fn label(to: Option<&Position>, from: &Position) -> String {
    match to {
        Some(to) if to.file == from.file => to.line.to_string(),
        Some(to) => format!("{}:{}", to.file, to.line),
        None => "a place without a line".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::rewrite::Covered;

    const FILE: &str = "proxy-ebpf/src/a.rs";

    fn position(line: u32) -> Position {
        Position { file: FILE.to_owned(), line, column: 9 }
    }

    /// Copies of a jump in line 10 and of the blocks of lines 12 and 13, with their passed probes.
    fn report(copies: &[[u8; 2]], ways: [usize; 2]) -> Report {
        let positions: Positions = [(0, position(10)), (2, position(12)), (3, position(13))]
            .map(|(at, position)| (at, Some(position)))
            .into();
        let way = |probe, to| Outcome { jump: 0, to, probe: Some(probe) };
        let mut report = Report::default();
        for passed in copies {
            let code = Rewritten {
                blocks: vec![
                    Covered { start: 2, end: 3, probe: Some(0) },
                    Covered { start: 3, end: 4, probe: Some(1) },
                ],
                outcomes: vec![way(0, ways[0]), way(1, ways[1])],
                ..Rewritten::default()
            };
            report.add(&code, &positions, passed, |_| true);
        }
        report
    }

    fn share(reached: usize, all: usize) -> Share {
        Share { reached, all }
    }

    #[test]
    fn a_line_is_reached_if_one_copy_has_reached_it() {
        let lines = |copies: &[[u8; 2]]| report(copies, [2, 3]).files[FILE].lines.clone();
        assert_eq!(lines(&[[1, 0]]), [(12, true), (13, false)].into());
        assert_eq!(lines(&[[1, 0], [0, 1]]), [(12, true), (13, true)].into());
    }

    #[test]
    fn the_ways_of_a_branch_are_put_together_from_its_copies() {
        let shares = |copies: &[[u8; 2]], ways| {
            let [_, branches, copies] = report(copies, ways).files[FILE].shares();
            (branches, copies)
        };
        assert_eq!(shares(&[[1, 0], [1, 0]], [2, 3]), (share(1, 2), share(2, 4)));
        assert_eq!(shares(&[[1, 0], [0, 1]], [2, 3]), (share(2, 2), share(2, 4)));
        // Both ways lead to one line, so a line does not tell which way another copy has gone.
        assert_eq!(shares(&[[1, 0], [0, 1]], [2, 2]), (share(1, 2), share(2, 4)));
        assert_eq!(shares(&[[1, 1], [0, 0]], [2, 2]), (share(2, 2), share(2, 4)));
    }

    #[test]
    fn the_missing_way_is_named() {
        let missing = |passed| report(&[passed], [2, 3]).files[FILE].branches[&(10, 9)].missing();
        assert_eq!(missing([1, 1]), None);
        assert_eq!(missing([0, 1]).unwrap(), "only to 13, not to 12");
        assert_eq!(missing([0, 0]).unwrap(), "never");
    }

    #[test]
    fn code_without_a_probe_or_without_a_line_does_not_count() {
        let positions = Positions::from([(0, Some(position(10))), (2, None)]);
        let jump = |jump, probe| [Outcome { jump, to: 0, probe }, Outcome { jump, to: 2, probe: Some(0) }];
        let code = Rewritten {
            blocks: vec![Covered { start: 0, end: 2, probe: None }],
            outcomes: [jump(0, None), jump(2, Some(0))].concat(),
            ..Rewritten::default()
        };
        let mut report = Report::default();
        report.add(&code, &positions, &[1], |_| true);
        assert_eq!((report.unmeasured, report.files.len()), (2, 0));
    }

    #[test]
    fn a_share_is_shown_with_its_percentage() {
        assert_eq!(share(1455, 1569).to_string(), "1455 of 1569,  92 %");
        assert_eq!(Share::default().to_string(), "-");
    }
}
