//! `millrace check`.

mod settings;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::CliError;
use super::output::{Column, Group, List, OutputArgs, Row, duration, note};
use super::place::Place;
use super::ready::reasons;
use crate::check::{self, Agent, Check, Checked, Counts, Facts, Finding, Fix, Outcome, Questions};
use crate::config::{ConfigError, Refused};
use settings::AgentFlags;

/// Arguments of `millrace check`.
#[derive(Args, Clone, Debug)]
pub struct CheckArgs {
    /// Checks to run, by name or by the first part of it, such as uplinks or sysctl [default: all]
    #[arg(value_name = "CHECK")]
    checks: Vec<String>,
    /// Checks to leave out
    #[arg(long, value_name = "CHECK,...", value_delimiter = ',')]
    skip: Vec<String>,
    /// Send a packet to each other node, as large as the way claims, in the encapsulation in use
    #[arg(long)]
    network: bool,
    /// Carry out the remedies that are sysctls or remove what an ended agent left; each command is shown before
    #[arg(long)]
    fix: bool,
    /// Status 4 after a warning, too
    #[arg(long)]
    strict: bool,
    /// Time for each answer of the API server
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    form: OutputArgs,
    #[command(flatten)]
    agent: AgentFlags,
}

/// Checks this node, and prints what was found. Fails if a check did.
pub async fn run(args: &CheckArgs) -> Result<(), CliError> {
    let checks = args.chosen()?;
    let settings = args.agent.resolve()?;
    let place = Place { bpffs_path: settings.bpffs.clone() };
    let agent = place.agent().map(|view| Agent { process: view.process, failing: reasons(&view.readiness) });
    let asked = Questions { patience: args.timeout, to_nodes: args.network };
    let facts = Facts::gather(settings.clone(), agent.clone(), asked).await;
    let mut checked = check::run(&checks, &facts);
    if args.fix && carry_out(&checked) {
        checked = check::run(&checks, &Facts::gather(settings, agent, asked).await);
    }
    args.form.list(&place, &list(&checked, args.form.is_wide())?)?;
    let worst = if args.strict { Outcome::Warn } else { Outcome::Fail };
    match failing(&checked, worst).as_slice() {
        [] => Ok(()),
        names => Err(CliError::Found(names.join(", "))),
    }
}

/// Carries the remedies of what is wrong out, and shows the command that does the same before each. Returns whether
/// there is one.
fn carry_out(checked: &[Checked]) -> bool {
    let wrong = checked.iter().flat_map(|checked| &checked.findings);
    let fixes: BTreeSet<&Fix> = wrong.filter_map(|finding| finding.fix.as_ref()).collect();
    for fix in &fixes {
        note(&fix.command());
        if let Err(error) = fix.carry_out() {
            note(&error);
        }
    }
    !fixes.is_empty()
}

impl CheckArgs {
    fn chosen(&self) -> Result<Vec<&'static Check>, CliError> {
        let left_out = if self.skip.is_empty() { Vec::new() } else { named("--skip", &self.skip)? };
        let is_left = |check: &&Check| !left_out.iter().any(|left| left.id == check.id);
        Ok(named("CHECK", &self.checks)?.into_iter().filter(is_left).collect())
    }
}

fn named(origin: &str, names: &[String]) -> Result<Vec<&'static Check>, CliError> {
    check::named(names).map_err(|unknown| {
        let ids: Vec<&str> = check::ALL.iter().map(|check| check.id).collect();
        let message = Refused::new(&unknown, ids.join(", ")).to_string();
        ConfigError { origin: origin.to_owned(), message }.into()
    })
}

/// Returns the names of the checks with a finding as bad as this, or worse.
fn failing(checked: &[Checked], worst: Outcome) -> Vec<&'static str> {
    let has_one = |checked: &&Checked| checked.findings.iter().any(|finding| finding.outcome >= worst);
    checked.iter().filter(has_one).map(|checked| checked.id).collect()
}

fn list(checked: &[Checked], is_wide: bool) -> Result<List, CliError> {
    let lines =
        checked.iter().flat_map(|checked| checked.findings.iter().map(|one| Line::of(checked.id, one)));
    let lines: Vec<Line<'_>> = lines.collect();
    let counts = Counts::of(checked.iter().flat_map(|checked| &checked.findings));
    Ok(List::new("CheckList", vec![Group::of_node(&lines, is_wide)?]).with_summary(counts.to_string()))
}

/// Returns the findings of a list in JSON, which another node wrote.
pub fn read(list: &Value, is_wide: bool) -> Result<Group, serde_json::Error> {
    Group::read::<Line<'_>>(list, is_wide)
}

/// Returns the line that counts the findings of such lists.
pub fn summary<'a>(lists: impl IntoIterator<Item = &'a Value>) -> String {
    let items = lists.into_iter().filter_map(|list| list.get("items")?.as_array()).flatten();
    let counts: Counts = items.filter_map(|item| Outcome::named(item.get("result")?.as_str()?)).collect();
    counts.to_string()
}

/// A finding, as in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Line<'a> {
    result: Cow<'a, str>,
    check: Cow<'a, str>,
    found: Cow<'a, str>,
    remedy: Cow<'a, str>,
}

impl<'a> Line<'a> {
    fn of(check: &'static str, finding: &'a Finding) -> Self {
        Self {
            result: finding.outcome.name().into(),
            check: check.into(),
            found: finding.found.as_str().into(),
            remedy: finding.remedy.as_str().into(),
        }
    }
}

impl Row for Line<'_> {
    const COLUMNS: &'static [Column] = &[
        Column::new("RESULT", "result"),
        Column::new("CHECK", "check"),
        Column::new("FOUND", "found").wrapped(),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        let remedy = if self.remedy.is_empty() { String::new() } else { format!("\n-> {}", self.remedy) };
        vec![self.result.to_string(), self.check.to_string(), format!("{}{remedy}", self.found)]
    }

    fn name(&self) -> String {
        self.check.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;
    use crate::cli::output::{Format, Style};

    fn ids(line: &str) -> Result<Vec<&'static str>, String> {
        let args: CheckArgs = parsed(line);
        let ids = args.chosen().map(|checks| checks.iter().map(|check| check.id).collect());
        ids.map_err(|error| error.to_string())
    }

    #[test]
    fn checks_are_chosen_and_left_out_by_name() {
        assert_eq!(ids("bpffs --skip bpffs.foreign"), Ok(vec!["bpffs"]));
        assert_eq!(ids("--uplinks eth0 cgroup"), Ok(vec!["cgroup"]));
        let refused = ids("firewal").unwrap_err();
        assert!(
            refused.starts_with("CHECK: \"firewal\" is not accepted; takes kernel.version, "),
            "{refused}"
        );
        assert!(ids("--skip nothing").unwrap_err().starts_with("--skip: \"nothing\" is not accepted"));
        assert!(ids("--skip bpffs").unwrap().contains(&"cgroup"));
    }

    #[test]
    fn at_80_columns_nothing_is_cut_and_the_counts_come_last() {
        let uplinks = "--uplinks names eth9; there is no such device (there are: eth0, veth1). Nothing from outside is \
                       served.";
        let checked = [
            Checked { id: "uplinks", findings: vec![Finding::fail(uplinks, "name another by --uplinks")] },
            Checked { id: "sysctl.rp_filter", findings: vec![Finding::pass("no strict filter")] },
        ];
        let format = Format::Table;
        let node = || "node-a".to_owned();
        let style = Style { format: &format, no_headers: false, width: Some(80), node: &node };
        let text = list(&checked, false).unwrap().render(&style).unwrap();
        assert_eq!(
            text,
            "RESULT  CHECK             FOUND\n\
             FAIL    uplinks           --uplinks names eth9; there is no such device (there\n                          \
             are: eth0, veth1). Nothing from outside is served.\n                          \
             -> name another by --uplinks\n\
             PASS    sysctl.rp_filter  no strict filter\n\
             1 passed, 0 warnings, 1 failed, 0 skipped\n"
        );
        assert!(text.lines().all(|line| line.len() <= 80));
        let format = Format::Json;
        let json = list(&checked, false).unwrap().render(&Style { format: &format, ..style }).unwrap();
        let json: Value = serde_json::from_str(&json).unwrap();
        assert!(read(&json, false).is_ok(), "another node reads it as it is written: {json}");
        assert_eq!(summary([&json]), "1 passed, 0 warnings, 1 failed, 0 skipped");
    }

    #[test]
    fn a_failure_is_named_and_a_warning_only_if_it_is_to_count() {
        let checked = [
            Checked { id: "a", findings: vec![Finding::pass("x"), Finding::fail("y", "z")] },
            Checked { id: "b", findings: vec![Finding::warn("x", "y")] },
            Checked { id: "c", findings: vec![Finding::skip("x")] },
        ];
        assert_eq!(failing(&checked, Outcome::Fail), ["a"]);
        assert_eq!(failing(&checked, Outcome::Warn), ["a", "b"]);
    }
}
