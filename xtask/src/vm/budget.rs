//! The instruction budget: how many instructions the verifier may walk through for each program.
//!
//! The kernel gives up at a million. The count jumps with small changes, so growth has to be
//! noticed early.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

const HEADER: &str = "\
# Instructions the verifier may walk through for each program, on any kernel that is tried.
# `cargo xtask vm` fails above; `cargo xtask vm --record` writes the counts it finds here, with half as much room again.
";
/// The unit to which limits are rounded up, so that small changes don't change the file.
const STEP: u32 = 500;

/// The count of one program on one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Count {
    /// The program's name. A suffix behind a slash says how it was loaded, if not as usual.
    pub program: String,
    /// The instructions that the verifier walked through.
    pub instructions: u32,
}

impl Count {
    /// Reads the loader's line `program NAME INSTRUCTIONS`, also at the end of a console's line.
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (Some("program"), Some(program), Some(count), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return None;
        };
        Some(Self { program: program.to_owned(), instructions: count.parse().ok()? })
    }
}

/// The recorded limits.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Budget(BTreeMap<String, u32>);

impl Budget {
    /// Reads the checked-in file.
    pub fn read(workspace: &Workspace) -> Result<Self> {
        let path = path(workspace);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a budget", path.display()))
    }

    /// Returns limits with half as much room again, above the largest count of each program.
    pub fn with_room(counts: &[Count]) -> Self {
        let mut limits = BTreeMap::new();
        for Count { program, instructions } in counts {
            let limit = (instructions + instructions / 2).next_multiple_of(STEP);
            let entry = limits.entry(base(program).to_owned()).or_insert(limit);
            *entry = limit.max(*entry);
        }
        Self(limits)
    }

    /// Replaces the checked-in file.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        let mut text = HEADER.to_owned();
        for (program, limit) in &self.0 {
            writeln!(text, "{program} {limit}")?;
        }
        let path = path(workspace);
        std::fs::write(&path, text).with_context(|| format!("can't write {}", path.display()))
    }

    /// Returns the limit of `program`, however it was loaded, or `None` if it has no record.
    pub fn limit(&self, program: &str) -> Option<u32> {
        self.0.get(base(program)).copied()
    }

    /// Returns a phrase for each program that has no limit or is above it.
    pub fn excess(&self, counts: &[Count]) -> Vec<String> {
        let judge = |Count { program, instructions }: &Count| match self.limit(program) {
            None => Some(format!("{program} has no budget")),
            Some(limit) if *instructions > limit => {
                Some(format!("{program} takes {instructions} instructions, above its budget of {limit}"))
            }
            Some(_) => None,
        };
        counts.iter().filter_map(judge).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let limits = lines.map(|line| {
            let (program, limit) = line.split_once(' ').with_context(|| format!("no number in `{line}`"))?;
            let limit = limit.parse().with_context(|| format!("no number in `{line}`"))?;
            Ok((program.to_owned(), limit))
        });
        limits.collect::<Result<_>>().map(Self)
    }
}

fn base(program: &str) -> &str {
    program.split_once('/').map_or(program, |(base, _)| base)
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root.join("xtask/verifier-budget.txt")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(program: &str, instructions: u32) -> Count {
        Count { program: program.to_owned(), instructions }
    }

    #[test]
    fn the_loaders_line_is_read_and_no_other() {
        assert_eq!(Count::from_line("program tc_egress 1234\r"), Some(count("tc_egress", 1234)));
        assert_eq!(Count::from_line("program tc_egress many"), None);
        assert_eq!(Count::from_line("[ 1.2] program tc_egress 1234"), None);
    }

    #[test]
    fn a_program_above_its_limit_and_one_without_exceed_the_budget() {
        let budget = Budget::parse("# comment\n\ntc_egress 1000\nxdp_ingress 2000\n").unwrap();
        let excess = budget.excess(&[count("tc_egress", 1001), count("xdp_ingress", 2000), count("new", 1)]);
        assert_eq!(
            excess,
            ["tc_egress takes 1001 instructions, above its budget of 1000", "new has no budget"]
        );
    }

    #[test]
    fn a_program_has_one_budget_however_it_is_loaded() {
        let budget = Budget::with_room(&[count("tc_egress", 100), count("tc_egress/older", 1000)]);
        assert_eq!(budget, Budget::parse("tc_egress 1500").unwrap());
        let excess = budget.excess(&[count("tc_egress/newer", 1501), count("tc_egress/older", 1500)]);
        assert_eq!(excess, ["tc_egress/newer takes 1501 instructions, above its budget of 1500"]);
    }

    #[test]
    fn the_recorded_limit_has_room_above_the_largest_count() {
        let budget = Budget::with_room(&[count("tc_egress", 100), count("tc_egress", 1000)]);
        assert_eq!(budget, Budget::parse("tc_egress 1500").unwrap());
    }

    #[test]
    fn a_broken_budget_is_refused_with_its_line() {
        let error = Budget::parse("tc_egress a lot").unwrap_err();
        assert_eq!(error.to_string(), "no number in `tc_egress a lot`");
    }
}
