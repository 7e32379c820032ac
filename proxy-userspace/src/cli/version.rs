//! `millrace version`.

use std::fmt;

use clap::Args;
use proxy_common::LAYOUT_VERSION;
use serde::Serialize;

use super::error::CliError;
use super::output::{Document, OutputArgs, age};
use super::place::Place;
use crate::health::AgentView;

/// Arguments of `millrace version`.
#[derive(Args, Clone, Debug)]
pub struct VersionArgs {
    #[command(flatten)]
    form: OutputArgs,
    #[command(flatten)]
    place: Place,
}

/// The output of `millrace version -o json`.
#[allow(clippy::struct_field_names, reason = "the names are keys of the JSON")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Version {
    /// The version of this program.
    version: &'static str,
    /// The version of the layout of the pinned maps.
    layout_version: u32,
    /// The agent that runs here; none if no agent answers.
    agent: Option<Agent>,
}

/// The agent that runs here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Agent {
    /// The version of its program; none if it is older than this field.
    version: Option<String>,
    /// Its process; 0 if it is not visible here.
    process: u32,
    /// Seconds since its start; none if it is older than this field.
    uptime_seconds: Option<u64>,
}

/// Prints the versions. The agent's may differ: pinned maps outlive programs.
pub fn run(args: &VersionArgs) -> Result<(), CliError> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        layout_version: LAYOUT_VERSION,
        agent: args.place.agent().as_ref().map(Agent::of),
    };
    args.form.show(&args.place, &Document::lines("Version", &version, line(&version))?)
}

fn line(version: &Version) -> String {
    let agent = version
        .agent
        .as_ref()
        .map_or_else(|| "no agent answers here".to_owned(), |agent| format!("agent here: {agent}"));
    format!("millrace {} (map layout {}); {agent}\n", version.version, version.layout_version)
}

impl Agent {
    /// Returns the version, the process and the age of an agent.
    pub fn of(agent: &AgentView) -> Self {
        Self { version: agent.version.clone(), process: agent.process, uptime_seconds: agent.uptime_seconds }
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version.as_deref().unwrap_or("of an unknown version"))?;
        if self.process != 0 {
            write!(f, ", process {}", self.process)?;
        }
        self.uptime_seconds.map_or(Ok(()), |seconds| write!(f, ", since {}", age(seconds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_of_program_and_agent_stand_in_one_line() {
        let agent = |version: Option<&str>, process, uptime_seconds| {
            let agent = Agent { version: version.map(str::to_owned), process, uptime_seconds };
            line(&Version { version: "0.2.0", layout_version: 5, agent: Some(agent) })
        };
        let program = "millrace 0.2.0 (map layout 5); ";
        assert_eq!(
            agent(Some("0.1.9"), 4711, Some(273_600)),
            format!("{program}agent here: 0.1.9, process 4711, since 3d4h\n")
        );
        assert_eq!(agent(None, 0, None), format!("{program}agent here: of an unknown version\n"));
        let none = line(&Version { version: "0.2.0", layout_version: 5, agent: None });
        assert_eq!(none, format!("{program}no agent answers here\n"));
    }
}
