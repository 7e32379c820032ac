//! The page flags.md, and tests of its values and defaults.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::{Arg, Args as _, Command, FromArgMatches as _};
use millrace::cli;
use millrace::config::{AgentArgs, ConfigError, Settings};

use crate::markdown::{code, table, with_code};

const INTRODUCTION: &str = "\
# Command line

`millrace COMMAND --help` prints the same. A wrong value ends the command with [status 2](exit-statuses.md) and one line on
standard error that names the flag and what it takes.

Flags of the agent have kube-proxy's names where they mean the same. Lists are separated by commas, or the flag is repeated.
A flag wins over the file of `--config`; [configuration.md](configuration.md) has the fields of that file.
";

const ENVIRONMENT: &str = "\n## Environment\n\n";

/// Returns the page.
pub fn page() -> String {
    let mut text = INTRODUCTION.to_owned();
    for command in cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        let about = command.get_about().unwrap();
        write!(text, "\n## millrace {name}\n\n{about}.\n").unwrap();
        if name == "agent" { groups(command, &mut text) } else { few(command, &mut text) }
    }
    text.push_str(ENVIRONMENT);
    let variables = [
        ("KUBECONFIG", "Kubeconfig file, where neither `--kubeconfig` nor the `--config` file names one"),
        (
            "NODE_NAME",
            "Name of this node's Node object, where neither `--hostname-override` nor the file has one",
        ),
        ("NODE_IPS", "Addresses of this node's Node object, separated by commas, for `--init-only`"),
        (
            "RUST_LOG",
            "What the agent logs, as `tracing` filters have it: `info` by default, `millrace=debug` for decisions",
        ),
    ];
    let rows = variables.map(|(name, meaning)| vec![code(name), meaning.to_owned()]);
    text + &table(&["Variable", "Meaning"], rows)
}

/// Returns a heading for each group and each flag.
fn groups(command: &Command, text: &mut String) {
    let mut group = "";
    for arg in command.get_arguments() {
        let heading = arg.get_help_heading().expect("every flag of the agent is in a group");
        if heading != group {
            group = heading;
            write!(text, "\n### {group}\n").unwrap();
        }
        let flag = Flag::of(arg);
        write!(text, "\n#### {}\n\n`{} {}`", flag.name, flag.name, flag.values).unwrap();
        let default = if is_literal(&flag.default) { code(&flag.default) } else { with_code(&flag.default) };
        write!(text, ", default: {default}\n\n{}.\n", with_code(&flag.phrase)).unwrap();
        if !flag.more.is_empty() {
            write!(text, "\n{}\n", with_code(&flag.more)).unwrap();
        }
    }
}

/// Returns a table of the flags of a command with few flags.
fn few(command: &Command, text: &mut String) {
    let rows = command.get_arguments().filter(|arg| !arg.is_hide_set()).map(|arg| {
        let flag = Flag::of(arg);
        let short = arg.get_short().map(|short| format!(", `-{short}`")).unwrap_or_default();
        vec![code(&flag.name) + &short, code(&flag.values), code(&flag.default), flag.phrase]
    });
    let rows: Vec<_> = rows.collect();
    write!(text, "\n{}", table(&["Flag", "Value", "Default", "Meaning"], rows)).unwrap();
}

struct Flag {
    name: String,
    values: String,
    default: String,
    /// Returns the first paragraph of the help, without the default.
    phrase: String,
    /// Returns the rest of the help.
    more: String,
}

impl Flag {
    fn of(arg: &Arg) -> Self {
        let help = arg.get_long_help().or(arg.get_help()).expect("every flag has help").to_string();
        let (first, more) = help.split_once("\n\n").unwrap_or((&help, ""));
        let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
        let (phrase, default) = first.rsplit_once(" [default: ").map_or_else(
            || (first, defaults.collect::<Vec<_>>().join(",")),
            |(phrase, default)| (phrase, default.trim_end_matches(']').to_owned()),
        );
        let possible: Vec<String> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let names = arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string);
        Self {
            name: arg.get_long().map_or_else(
                || arg.get_value_names().unwrap().first().unwrap().to_string(),
                |long| format!("--{long}"),
            ),
            values: if !arg.get_action().takes_values() {
                String::new()
            } else if possible.is_empty() {
                names.collect::<Vec<_>>().join(" ")
            } else {
                possible.join("|")
            },
            default,
            phrase: phrase.to_owned(),
            more: more.replace("\n\n", "\n"),
        }
    }
}

/// Whether a default is a value, not its description.
fn is_literal(default: &str) -> bool {
    !default.contains(' ') && default != "none"
}

/// Returns the names of all flags, each with its command.
pub fn names() -> BTreeSet<String> {
    let command = cli::command();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let all = shown.flat_map(Command::get_arguments);
    all.map(|arg| Flag::of(arg).name).collect()
}

fn agent_flags() -> Vec<Flag> {
    let command = cli::command();
    command.find_subcommand("agent").unwrap().get_arguments().map(Flag::of).collect()
}

fn resolve(flags: &[String]) -> Result<Settings, ConfigError> {
    let command = AgentArgs::augment_args(Command::new("agent").no_binary_name(true));
    let matches =
        command.try_get_matches_from(flags).map_err(|error| ConfigError::of_flag(&error).unwrap())?;
    let args = AgentArgs::from_arg_matches(&matches).unwrap();
    Settings::resolve_on(&args, Some("node-1".to_owned()))
}

#[test]
fn help_is_a_phrase_with_a_default_and_then_sentences() {
    for Flag { name, default, phrase, more, .. } in agent_flags() {
        assert!(!default.is_empty(), "{name} has no default");
        assert!(phrase.starts_with(char::is_uppercase) && !phrase.ends_with('.'), "{name}: {phrase}");
        assert!(more.is_empty() || more.ends_with('.'), "{name}: {more}");
    }
}

#[test]
fn a_default_in_the_help_is_the_one_that_takes_effect() {
    let without = resolve(&[]).unwrap();
    let mut literals = 0;
    for flag in agent_flags().into_iter().filter(|flag| is_literal(&flag.default)) {
        literals += 1;
        let given = format!("{}={}", flag.name, flag.default);
        assert_eq!(resolve(std::slice::from_ref(&given)), Ok(without.clone()), "{given}");
    }
    assert!(literals > 30, "{literals}");
}

#[test]
fn words_in_the_help_are_the_values_that_the_flag_takes() {
    let is_word = |word: &str| word.chars().all(|c| c.is_ascii_lowercase());
    let mut choices = 0;
    for flag in agent_flags() {
        let words: BTreeSet<&str> = flag.values.split('|').collect();
        if words.len() < 2 || !words.iter().all(|word| is_word(word)) {
            continue;
        }
        choices += 1;
        for word in &words {
            assert!(resolve(&[format!("{}={word}", flag.name)]).is_ok(), "{}={word}", flag.name);
        }
        let error = resolve(&[format!("{}=nonsense", flag.name)]).unwrap_err().to_string();
        let (_, takes) = error.rsplit_once("takes ").unwrap();
        let accepted: BTreeSet<&str> = takes.split(", ").flat_map(|part| part.split(" or ")).collect();
        assert_eq!(accepted, words, "{}", flag.name);
    }
    assert!(choices >= 10, "{choices}");
}
