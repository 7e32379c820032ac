//! `millrace completion`, and the candidates that a shell asks for.
//!
//! The script of a shell runs this program for each completion, so that names of Services are those of now.

use std::ffi::OsStr;
use std::path::Path;

use clap::{Args, ValueEnum};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::{CompleteEnv, Shells};

use super::error::CliError;
use super::output::write_out;
use crate::dataplane::ebpf::read::PinnedMaps;

/// The variable by which a script asks for candidates.
const VARIABLE: &str = "MILLRACE_COMPLETE";
const PROGRAM: &str = "millrace";
const DEFAULT_PATH: &str = "/sys/fs/bpf";

/// Arguments of `millrace completion`.
#[derive(Args, Clone, Debug)]
pub struct CompletionArgs {
    /// Shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    #[value(name = "powershell")]
    Power,
    Zsh,
}

impl Shell {
    const fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::Power => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

/// Prints the script for a shell.
pub fn run(args: &CompletionArgs) -> Result<(), CliError> {
    Ok(write_out(&script(args.shell)?)?)
}

fn script(shell: Shell) -> Result<String, CliError> {
    let mut script = Vec::new();
    if let Some(completer) = Shells::builtins().completer(shell.name()) {
        completer.write_registration(VARIABLE, PROGRAM, PROGRAM, PROGRAM, &mut script)?;
    }
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Answers a shell that asks for candidates. Returns `false` if none asks.
pub fn answer(command: fn() -> clap::Command) -> bool {
    let here = std::env::current_dir().ok();
    // A shell shows no error in the middle of a line.
    CompleteEnv::with_factory(command)
        .var(VARIABLE)
        .try_complete(std::env::args_os(), here.as_deref())
        .unwrap_or(true)
}

/// Returns the Services that begin with a text: `namespace/name`, or `name` without a namespace.
pub fn services(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(names(), &current.to_string_lossy())
}

/// Returns the namespaces of Services that begin with a text.
pub fn namespaces(current: &OsStr) -> Vec<CompletionCandidate> {
    let namespaces = names().into_iter().filter_map(|name| Some(name.split_once('/')?.0.to_owned()));
    candidates(namespaces, &current.to_string_lossy())
}

fn candidates(names: impl IntoIterator<Item = String>, current: &str) -> Vec<CompletionCandidate> {
    let mut found: Vec<String> = names
        .into_iter()
        .filter_map(|name| {
            let bare = name.split_once('/').map(|(_, bare)| bare.to_owned());
            if name.starts_with(current) { Some(name) } else { bare.filter(|bare| bare.starts_with(current)) }
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().map(CompletionCandidate::new).collect()
}

/// Returns the Services in the maps that the command line names; none if they can't be read.
fn names() -> Vec<String> {
    let arguments: Vec<String> = std::env::args().collect();
    let maps = PinnedMaps::open(Path::new(&bpffs_path(&arguments)));
    maps.and_then(|maps| maps.service_names()).unwrap_or_default().into_iter().collect()
}

/// Returns the value of `--bpffs-path` in a command line that is not complete yet.
fn bpffs_path(arguments: &[String]) -> String {
    let flag = "--bpffs-path";
    let place = arguments.iter().position(|argument| argument.starts_with(flag));
    let value = place.and_then(|place| {
        let joined = arguments.get(place)?.strip_prefix(flag)?.strip_prefix('=').map(str::to_owned);
        joined.or_else(|| arguments.get(place + 1).cloned())
    });
    value.unwrap_or_else(|| DEFAULT_PATH.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str], current: &str) -> Vec<String> {
        let names = names.iter().map(|name| (*name).to_owned());
        let found = candidates(names, current);
        found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_service_is_completed_with_and_without_its_namespace() {
        let names = ["shop/web", "shop/worker", "default/web"];
        assert_eq!(texts(&names, "shop/w"), ["shop/web", "shop/worker"]);
        assert_eq!(texts(&names, "we"), ["web"]);
        assert_eq!(texts(&names, ""), ["default/web", "shop/web", "shop/worker"]);
        assert_eq!(texts(&names, "x"), Vec::<String>::new());
    }

    #[test]
    fn the_path_of_an_unfinished_command_line_is_found() {
        let path = |text: &str| bpffs_path(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(path("millrace services --bpffs-path /run/bpf we"), "/run/bpf");
        assert_eq!(path("millrace services --bpffs-path=/run/bpf we"), "/run/bpf");
        assert_eq!(path("millrace services we"), "/sys/fs/bpf");
        assert_eq!(path("millrace services --bpffs-path"), "/sys/fs/bpf");
    }

    #[test]
    fn every_shell_has_a_script_that_asks_this_program() {
        for shell in Shell::value_variants() {
            let script = script(*shell).unwrap();
            assert!(script.contains(VARIABLE) && script.contains(PROGRAM), "{shell:?}: {script}");
        }
    }
}
