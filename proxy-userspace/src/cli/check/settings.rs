//! The settings to check: those of the flags, or of the agent that runs here.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

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
        match if is_bare { running(bpffs_path) } else { None } {
            Some(settings) => settings,
            None => Settings::resolve(&self.0),
        }
    }
}

/// Returns the settings of the agent that runs here, from its command line; `None` if there is no agent.
fn running(bpffs_path: Option<PathBuf>) -> Option<Result<Settings, ConfigError>> {
    let place = Place { bpffs_path: bpffs_path.unwrap_or_else(|| PathBuf::from(Place::DEFAULT)) };
    let process = ebpf::owner(&place.bpffs_path).or_else(|| place.agent().map(|agent| agent.process))?;
    let line = words(&fs::read(format!("/proc/{process}/cmdline")).ok()?);
    let Some(args) = agent_args(line) else {
        // Another version may have other flags.
        return Some(Err(ConfigError {
            origin: format!("process {process}"),
            message: "the agent's command line is not understood; repeat its flags behind `check`".to_owned(),
        }));
    };
    let environment = words(&fs::read(format!("/proc/{process}/environ")).unwrap_or_default());
    let name = environment.iter().find_map(|one| one.to_str()?.strip_prefix("NODE_NAME=").map(str::to_owned));
    let args = AgentArgs { config: args.config.map(|path| path_of(process, &path)), ..args };
    let name = name.filter(|name| !name.is_empty());
    Some(Settings::resolve_on(&args, Some(name.unwrap_or_else(crate::config::this_node))))
}

/// Returns where a path of another process is found: it may be relative, and in another mount namespace.
fn path_of(process: u32, path: &Path) -> PathBuf {
    let own = PathBuf::from(format!("/proc/{process}"));
    // A path that begins with a slash would take the place of all before it.
    path.strip_prefix("/").map_or_else(|_| own.join("cwd").join(path), |inside| own.join("root").join(inside))
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
    fn a_path_of_the_agents_is_looked_for_where_the_agent_is() {
        let found = |path: &str| path_of(7, Path::new(path)).display().to_string();
        assert_eq!(found("/etc/millrace/config.conf"), "/proc/7/root/etc/millrace/config.conf");
        assert_eq!(found("config.conf"), "/proc/7/cwd/config.conf");
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
