//! The table of alerts. The rules, their tests and the list in docs/operations.md are made from it.

mod agent;
mod datapath;

/// An alert.
#[derive(Clone, Copy, Debug)]
pub struct Alert {
    /// The name, also of its runbook.
    pub name: &'static str,
    /// `critical`: traffic is lost, or will be; `warning`: by day; `info`: for whoever looks.
    pub severity: &'static str,
    /// The expression.
    pub expression: &'static str,
    /// The minutes for which the expression must hold.
    pub minutes: u32,
    /// One line without values.
    pub summary: &'static str,
    /// One sentence with values, as a template of Prometheus.
    pub description: &'static str,
    /// Series of promtool under which it fires, once for each of `firing`.
    pub fires: &'static [(&'static str, &'static str)],
    /// The number of alerts that fire.
    pub firing: u32,
    /// Series under which it stays quiet.
    pub quiet: &'static [(&'static str, &'static str)],
}

/// All alerts, the gravest first.
pub fn all() -> impl Iterator<Item = &'static Alert> {
    agent::ALERTS.iter().chain(datapath::ALERTS)
}
