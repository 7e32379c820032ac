//! The settings to check: those of the flags, or of the agent that runs here.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, FromArgMatches, Parser};

use crate::cli::place::Place;
use crate::cli::{self, Cli};
use crate::config::{AgentArgs, ConfigError, Settings};
use crate::dataplane::ebpf;

/// The agent's flags. Help does not show them once more.
#[derive(Clone, Debug)]
pub struct AgentFlags(AgentArgs);

impl Args for AgentFlags {
    fn augment_args(command: Command) -> Command {
        let names = AgentArgs::augment_args(Command::new("agent"));
        let names: Vec<String> = names.get_arguments().map(|arg| arg.get_id().to_string()).collect();
        let command = AgentArgs::augment_args(command);
        names.iter().fold(command, |command, name| command.mut_arg(name, |arg| arg.hide(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for AgentFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        AgentArgs::from_arg_matches(matches).map(Self)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.update_from_arg_matches(matches)
    }
}

impl AgentFlags {
    /// Returns the settings of these flags. Without any, those of the agent that runs here count.
    pub fn resolve(&self) -> Result<Settings, ConfigError> {
        let bpffs_path = self.0.bpffs_path.clone();
        let is_bare = self.0 == AgentArgs { bpffs_path: bpffs_path.clone(), ..AgentArgs::default() };
        let running = is_bare.then(|| running(bpffs_path)).flatten();
        running.map_or_else(|| Settings::resolve(&self.0), Ok)
    }
}

/// Returns the settings of the agent that runs here, from its command line.
fn running(bpffs_path: Option<PathBuf>) -> Option<Settings> {
    let place = Place { bpffs_path: bpffs_path.unwrap_or_else(|| PathBuf::from(Place::DEFAULT)) };
    let process = ebpf::owner(&place.bpffs_path).or_else(|| place.agent().map(|agent| agent.process))?;
    let args = agent_args(words(&fs::read(format!("/proc/{process}/cmdline")).ok()?))?;
    let environment = words(&fs::read(format!("/proc/{process}/environ")).unwrap_or_default());
    let name = environment.iter().find_map(|one| one.to_str()?.strip_prefix("NODE_NAME=").map(str::to_owned));
    let args = AgentArgs {
        // The path is the agent's: it may be relative, or in another mount namespace.
        config: args.config.map(|path| PathBuf::from(format!("/proc/{process}/cwd")).join(path)),
        ..args
    };
    let name = name.filter(|name| !name.is_empty());
    Settings::resolve_on(&args, Some(name.unwrap_or_else(crate::config::this_node))).ok()
}

/// Splits a text of `/proc` into words, each of which ends with a zero.
fn words(text: &[u8]) -> Vec<OsString> {
    let words = text.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    words.map(|word| OsString::from_vec(word.to_vec())).collect()
}

fn agent_args(words: Vec<OsString>) -> Option<AgentArgs> {
    match Cli::try_parse_from(words).ok()?.command {
        cli::Command::Agent(args) => Some(*args),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::argument::parsed;

    #[test]
    fn the_flags_of_a_running_agent_are_read_from_its_command_line() {
        let line = b"/usr/bin/millrace\0agent\0--uplinks\0eth0,eth1\0--xdp=off\0";
        let args = agent_args(words(line)).unwrap();
        assert_eq!(args.uplinks, ["eth0", "eth1"]);
        assert_eq!(agent_args(words(b"millrace\0status\0")), None);
        assert_eq!(agent_args(words(b"other\0--program\0")), None);
    }

    #[test]
    fn flags_are_taken_and_not_shown_again() {
        let flags: AgentFlags = parsed("--uplinks eth9 --bpffs-path /sys/fs/bpf/none");
        let settings = flags.resolve().unwrap();
        assert_eq!(settings.uplinks, ["eth9"]);
        let command = AgentFlags::augment_args(Command::new("check"));
        assert!(command.get_arguments().all(clap::Arg::is_hide_set));
    }
}
