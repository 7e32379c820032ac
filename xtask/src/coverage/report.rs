//! The figures: lines and branch outcomes of the source, reached and in all.
//!
//! The compiler makes many copies of a function: for IPv4 and IPv6, XDP and TC. A line is reached if any copy has
//! reached it. A branch outcome is the way from the position of a conditional jump to the line where it leads.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::Result;

use super::btf::{Position, Positions};
use super::rewrite::Rewritten;
use super::source::Functions;

/// The folders whose lines count. Those of the standard library do not.
const OURS: [&str; 2] = ["proxy-ebpf/src/", "proxy-common/src/"];

/// A way of a conditional jump: its position, and where it leads.
type Way = (u32, u32, String);

/// What was reached in one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct File {
    /// The lines.
    pub lines: BTreeMap<u32, bool>,
    /// The branch outcomes.
    ways: BTreeMap<Way, bool>,
}

/// All files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    files: BTreeMap<String, File>,
    /// Blocks and ways without a probe.
    pub unmeasured: usize,
}

/// A part and the whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    reached: usize,
    all: usize,
}

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
            let inside = positions.range(block.start..block.end).map(|(_, position)| position);
            for position in carried.into_iter().chain(inside) {
                if let Some(file) = self.file(position) {
                    *file.lines.entry(position.line).or_default() |= is_passed(probe);
                }
            }
        }
        for outcome in code.outcomes.iter().filter(|outcome| counts(outcome.jump)) {
            let (Some(from), Some(to)) = (at(positions, outcome.jump), at(positions, outcome.to)) else {
                continue;
            };
            let Some(probe) = outcome.probe else {
                self.unmeasured += 1;
                continue;
            };
            let to =
                if to.file == from.file { to.line.to_string() } else { format!("{}:{}", to.file, to.line) };
            if let Some(file) = self.file(from) {
                *file.ways.entry((from.line, from.column, to)).or_default() |= is_passed(probe);
            }
        }
    }

    fn file(&mut self, position: &Position) -> Option<&mut File> {
        let start = OURS.iter().find_map(|ours| position.file.find(ours))?;
        let name = position.file.get(start..).filter(|_| position.line > 0)?;
        Some(self.files.entry(name.to_owned()).or_default())
    }

    /// Returns the shares of lines and branch outcomes.
    pub fn shares(&self) -> (Share, Share) {
        self.files
            .values()
            .map(File::shares)
            .fold(Default::default(), |(lines, ways), (more, others)| (lines.and(more), ways.and(others)))
    }

    /// Writes a table of all files.
    pub fn table(&self) -> String {
        let row = |name: &str, (lines, ways): (Share, Share)| format!("{name:<48}{lines:>22}{ways:>22}\n");
        let head = format!("{:<48}{:>22}{:>22}\n", "file", "lines", "branch outcomes");
        let rows = self.files.iter().map(|(name, file)| row(name, file.shares()));
        [head].into_iter().chain(rows).chain([row("all", self.shares())]).collect()
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
            for ((line, column, to), reached) in &file.ways {
                let function = found.entry(around(*line)).or_default();
                function.ways.add(*reached);
                function.places.extend((!reached).then(|| format!("{line}:{column} to {to}")));
            }
            let found: Vec<_> = found.iter().filter(|(_, function)| !function.places.is_empty()).collect();
            if !found.is_empty() {
                text.push_str(&format!("{name}\n"));
            }
            for (function, unreached) in found {
                let (lines, ways) = (unreached.lines, unreached.ways);
                text.push_str(&format!("  {function:<44}{lines:>22}{ways:>22}\n"));
                if with_lines {
                    unreached.places.iter().for_each(|place| text.push_str(&format!("    {place}\n")));
                }
            }
        }
        Ok(text)
    }
}

/// A function with lines or branch outcomes that were not reached.
#[derive(Default)]
struct Unreached {
    lines: Share,
    ways: Share,
    places: Vec<String>,
}

impl File {
    fn shares(&self) -> (Share, Share) {
        (Share::of(self.lines.values()), Share::of(self.ways.values()))
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
    positions.range(..=instruction).next_back().map(|(_, position)| position)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::rewrite::{Covered, Outcome};

    fn position(file: &str, line: u32) -> Position {
        Position { file: format!("/build/{file}"), line, column: 9 }
    }

    #[test]
    fn lines_and_ways_of_all_copies_are_one() {
        let jump = |at, probe| Outcome { jump: at, to: at + 1 + probe, probe: Some(probe) };
        let code = Rewritten {
            blocks: vec![
                Covered { start: 0, end: 2, probe: Some(0) },
                Covered { start: 2, end: 3, probe: Some(1) },
                Covered { start: 3, end: 4, probe: None },
            ],
            outcomes: vec![jump(1, 1), jump(1, 0)],
            ..Rewritten::default()
        };
        let ours = "proxy-ebpf/src/a.rs";
        let positions = Positions::from([
            (0, position(ours, 10)),
            (1, position("library/core/src/option.rs", 5)),
            (2, position(ours, 12)),
            (3, position(ours, 13)),
        ]);
        let mut report = Report::default();
        report.add(&code, &positions, &[1, 0], |_| true);
        assert_eq!(report.files[ours].lines, [(10, true), (12, false)].into());
        assert_eq!(report.unmeasured, 1);
        report.add(&code, &positions, &[0, 1], |_| true);
        assert_eq!(report.shares().0, Share { reached: 2, all: 2 });
        assert!(report.files[ours].ways.is_empty(), "the jump is in the standard library");
        report.add(&code, &[(0, position(ours, 10)), (2, position(ours, 12))].into(), &[0, 1], |_| true);
        assert_eq!(report.files[ours].ways.values().copied().collect::<Vec<_>>(), [true]);
    }

    #[test]
    fn a_share_is_shown_with_its_percentage() {
        assert_eq!(Share { reached: 1455, all: 1569 }.to_string(), "1455 of 1569,  92 %");
        assert_eq!(Share::default().to_string(), "-");
    }
}
