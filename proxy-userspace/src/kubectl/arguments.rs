//! The command line of `kubectl millrace`: its own flags, and the words for the nodes.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::connectivity::TestArgs;
use super::error::KubectlError;
use crate::cli::{self, Format, duration, one_line, parse_format};

/// The commands that change a node, or are for one's own machine.
const OF_ONE_NODE: [&str; 6] = ["agent", "cleanup", "completion", "echo", "man", "probe"];

/// The commands whose tables have lines beside the rows, or cells of several lines.
const ROWS: [&str; 3] = ["check", "monitor", "top"];

/// Millrace on all nodes of a cluster: any command of `millrace` that shows something, and those below.
///
/// `kubectl millrace status`, `services`, `backends`, `flows`, `top`, `monitor --last`, `check`, `ways`, `announced`,
/// `policies`, `counters`, `maps`, `programs` and `version` run on each node, and take the flags that `millrace` has for them.
#[derive(Debug, Parser)]
#[command(name = "kubectl millrace", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: Command,
}

/// The cluster, and the nodes in it.
#[derive(Args, Clone, Debug)]
pub struct Target {
    /// Nodes, separated by commas [default: all with an agent]
    #[arg(global = true, long, value_name = "NODE,...", value_delimiter = ',')]
    pub on: Vec<String>,
    /// Kubeconfig file [default: KUBECONFIG, else ~/.kube/config]
    #[arg(global = true, long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file [default: the current one]
    #[arg(global = true, long)]
    pub context: Option<String>,
    /// Label of the agents' pods
    #[arg(global = true, long, value_name = "LABEL", default_value = "app.kubernetes.io/name=millrace")]
    pub selector: String,
    /// Longest time for a node's answer. Of events and of tables, what came until then is shown
    #[arg(global = true, long = "node-timeout", value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub timeout: Duration,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show in what the nodes differ: endpoints, frontends, lengths of lists, sizes of maps, versions; status 4 if
    /// they do
    Diff(DiffArgs),
    /// Write the output of all commands on all nodes, and the agents' logs, into an archive
    Bugtool(BugtoolArgs),
    /// Let pods ask Services of every kind, and say what did not arrive; status 4 if something did not
    Test(TestArgs),
    /// Any other command, for the nodes
    #[command(external_subcommand)]
    Other(Vec<String>),
}

/// Arguments of `kubectl millrace diff`.
#[derive(Args, Clone, Copy, Debug)]
pub struct DiffArgs {
    /// Format
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: DiffFormat,
}

/// A format of `diff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    /// A row for each difference
    Table,
    /// A JSON document
    Json,
}

/// Arguments of `kubectl millrace bugtool`.
#[derive(Args, Clone, Debug)]
pub struct BugtoolArgs {
    /// The archive [default: millrace-bugtool-TIME.tar.gz here]
    #[arg(short = 'O', long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
}

/// A command for the nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The command and its arguments, with the format that is joined.
    pub words: Vec<String>,
    /// The format of the joined output.
    pub format: Format,
    /// The header of a table is left out.
    pub no_headers: bool,
}

impl Call {
    /// Whether it is `millrace status`. All nodes answer it as JSON, which has their readiness.
    pub fn is_status(&self) -> bool {
        self.words.first().is_some_and(|word| word == "status")
    }

    /// Whether the nodes answer with rows as JSON, which become a table here: their own tables are not to be joined.
    pub fn has_rows(&self) -> bool {
        has_rows(&self.words)
    }

    /// Takes our own flags out of the words, wherever they stand, and checks the rest as `millrace` does.
    pub fn parse(mut words: Vec<String>, target: &mut Target) -> Result<Self, KubectlError> {
        if let Some(command) = words.first().filter(|word| OF_ONE_NODE.contains(&word.as_str())) {
            return Err(KubectlError::Usage(format!(
                "`{command}` is for one node: run `millrace {command}` there"
            )));
        }
        let freely = takes_anything(&words);
        while let Some(nodes) = take_value(&mut words, &["--on"], &freely)? {
            target.on.extend(nodes.split(',').map(str::to_owned));
        }
        while let Some(context) = take_value(&mut words, &["--context"], &freely)? {
            target.context = Some(context);
        }
        while let Some(file) = take_value(&mut words, &["--kubeconfig"], &freely)? {
            target.kubeconfig = Some(file.into());
        }
        while let Some(label) = take_value(&mut words, &["--selector"], &freely)? {
            target.selector = label;
        }
        while let Some(longest) = take_value(&mut words, &["--node-timeout"], &freely)? {
            let parsed = duration(&longest);
            target.timeout =
                parsed.map_err(|error| KubectlError::Usage(format!("--node-timeout: {error}")))?;
        }
        if let Some(flag) = words.iter().find(|word| ["-w", "--watch"].contains(&word.as_str())) {
            return Err(KubectlError::Usage(format!(
                "{flag} is for one node: run it in a pod, or repeat the command"
            )));
        }
        let is_of_manifests = |word: &String| word == "--manifests" || word.starts_with("--manifests=");
        if words.first().is_some_and(|word| word == "policies") && words.iter().any(is_of_manifests) {
            return Err(KubectlError::Usage(
                "policies --manifests needs no node: run `millrace policies --manifests` here".to_owned(),
            ));
        }
        let mut format = None;
        while let Some(given) = take_value(&mut words, &["--output", "-o"], &freely)? {
            let parsed = parse_format(&given);
            format = Some(parsed.map_err(|error| KubectlError::Usage(format!("--output: {error}")))?);
        }
        let format = format.unwrap_or(Format::Table);
        let before = words.len();
        words.retain(|word| word != "--no-headers");
        let no_headers = words.len() < before;
        let all = ["millrace"].into_iter().chain(words.iter().map(String::as_str));
        match cli::command().try_get_matches_from(all) {
            Err(error) if error.use_stderr() => return Err(KubectlError::Usage(one_line(&error))),
            Err(help) => return Err(KubectlError::Help(help.to_string())),
            Ok(_) => {}
        }
        let is_monitor = words.first().is_some_and(|word| word == "monitor");
        if is_monitor && !words.iter().any(|word| word.starts_with("--last") || word.starts_with("--count")) {
            return Err(KubectlError::Usage(
                "monitor goes on without an end: name --last or --count, or run it in a pod".to_owned(),
            ));
        }
        if is_monitor && matches!(format, Format::Wide | Format::Name) {
            return Err(KubectlError::Usage(
                "--output: monitor has neither wide nor name; it takes table, json, jsonl, yaml, jsonpath=PATH or \
                 custom-columns=TITLE:PATH,..."
                    .to_owned(),
            ));
        }
        let of_nodes = match format {
            _ if words.first().is_some_and(|word| word == "status") => "json",
            // Events have no document around them.
            _ if is_monitor => "jsonl",
            Format::Table | Format::Wide if has_rows(&words) => "json",
            Format::Table => "table",
            Format::Wide => "wide",
            Format::Name => "name",
            Format::Json | Format::JsonLines | Format::Yaml | Format::JsonPath(_) | Format::Columns(_) => {
                "json"
            }
        };
        if words.first().is_some_and(|word| word == "top") && !words.iter().any(|word| word == "--once") {
            words.push("--once".to_owned());
        }
        if has_format(&words) {
            words.extend(["-o", of_nodes].map(str::to_owned));
        }
        Ok(Self { words, format, no_headers })
    }
}

/// Whether the command has a format to choose.
fn has_format(words: &[String]) -> bool {
    let command = cli::command();
    let command = words.first().and_then(|name| command.find_subcommand(name));
    command.is_some_and(|command| command.get_arguments().any(|one| one.get_short() == Some('o')))
}

fn has_rows(words: &[String]) -> bool {
    words.first().is_some_and(|word| ROWS.contains(&word.as_str()))
}

/// Returns the flags of the command whose value may begin with a hyphen.
fn takes_anything(words: &[String]) -> Vec<String> {
    let command = cli::command();
    let command = words.first().and_then(|name| command.find_subcommand(name));
    let arguments = command.into_iter().flat_map(clap::Command::get_arguments);
    let freely = arguments.filter(|one| one.is_allow_hyphen_values_set());
    freely.filter_map(|one| Some(format!("--{}", one.get_long()?))).collect()
}

/// Removes a flag with its value: `--flag VALUE`, `--flag=VALUE`, and of a short one `-fVALUE`.
/// The word behind one of those that take anything, such as `--sort-by -opened`, is no flag.
fn take_value(
    words: &mut Vec<String>,
    flags: &[&str],
    freely: &[String],
) -> Result<Option<String>, KubectlError> {
    let is_value = |words: &[String], index: usize| {
        let before = index.checked_sub(1).and_then(|before| words.get(before));
        before.is_some_and(|before| freely.contains(before))
    };
    for flag in flags {
        let mut places = words.iter().enumerate();
        let place = places.find(|(index, word)| *word == flag && !is_value(words, *index));
        if let Some((index, _)) = place {
            words.remove(index);
            if index >= words.len() {
                return Err(KubectlError::Usage(format!("{flag} has no value")));
            }
            return Ok(Some(words.remove(index)));
        }
        let rest = |word: &String| {
            let rest = word.strip_prefix(flag)?;
            if flag.starts_with("--") { rest.strip_prefix('=') } else { Some(rest) }.map(str::to_owned)
        };
        let mut places = words.iter().enumerate().filter(|(index, _)| !is_value(words, *index));
        let found = places.find_map(|(index, word)| Some((index, rest(word)?)));
        if let Some((index, value)) = found {
            words.remove(index);
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<(Call, Target), KubectlError> {
        let cli = Cli::try_parse_from(["kubectl-millrace"].into_iter().chain(line.split(' '))).unwrap();
        let mut target = cli.target;
        let Command::Other(words) = cli.command else { panic!("{line}") };
        Call::parse(words, &mut target).map(|call| (call, target))
    }

    #[test]
    fn our_flags_stand_anywhere_and_the_rest_goes_to_the_nodes() {
        let (call, target) =
            parse("--context c services shop/web -n shop --on node-a,node-b --no-headers").unwrap();
        assert_eq!(call.words, ["services", "shop/web", "-n", "shop", "-o", "table"]);
        assert!(call.no_headers && call.format == Format::Table);
        assert_eq!(
            (target.on, target.context),
            (vec!["node-a".to_owned(), "node-b".to_owned()], Some("c".to_owned()))
        );
        let (call, target) =
            parse("status --wait Ready --timeout 5m --node-timeout 6m --selector app=proxy").unwrap();
        assert_eq!(
            call.words.join(" "),
            "status --wait Ready --timeout 5m -o json",
            "--timeout is the node's"
        );
        assert_eq!((target.timeout, target.selector.as_str()), (Duration::from_mins(6), "app=proxy"));
        for (line, sent, format) in [
            ("flows -oyaml", "flows -o json", Format::Yaml),
            ("flows --output=jsonl --count-by client", "flows --count-by client -o json", Format::JsonLines),
            ("status", "status -o json", Format::Table),
            ("status -o wide", "status -o json", Format::Wide),
            ("status -o name", "status -o json", Format::Name),
            ("ways -o name", "ways -o name", Format::Name),
            ("top shop/web", "top shop/web --once -o json", Format::Table),
            ("check uplinks", "check uplinks -o json", Format::Table),
            ("top -o wide", "top --once -o json", Format::Wide),
            ("monitor --last 5", "monitor --last 5 -o jsonl", Format::Table),
            ("monitor --last -o yaml", "monitor --last -o jsonl", Format::Yaml),
            ("ready", "ready", Format::Table),
            ("policies shop/web -o wide", "policies shop/web -o wide", Format::Wide),
            ("backends --sort-by -opened", "backends --sort-by -opened -o table", Format::Table),
            ("backends --sort-by -opened -oyaml", "backends --sort-by -opened -o json", Format::Yaml),
        ] {
            let (call, _) = parse(line).unwrap();
            assert_eq!((call.words.join(" ").as_str(), call.format), (sent, format), "{line}");
        }
    }

    #[test]
    fn our_flags_stand_behind_our_own_commands_too() {
        let line = "kubectl-millrace --context c diff --on node-a,node-b --node-timeout 5s";
        let cli = Cli::try_parse_from(line.split(' ')).unwrap();
        assert!(matches!(cli.command, Command::Diff(_)));
        assert_eq!((cli.target.on.len(), cli.target.timeout), (2, Duration::from_secs(5)));
        assert_eq!(cli.target.context.as_deref(), Some("c"));
    }

    #[test]
    fn the_help_of_a_command_is_shown_here() {
        let help = parse("flows --help").unwrap_err();
        assert!(matches!(&help, KubectlError::Help(text) if text.contains("--count-by")), "{help}");
    }

    #[test]
    fn what_no_node_would_take_is_refused_here_by_one_line() {
        for (line, said) in [
            ("cleanup", "`cleanup` is for one node"),
            ("flows -w", "-w is for one node"),
            ("policies --manifests .", "policies --manifests needs no node"),
            ("policies --node node-a", "the following required arguments were not provided: --manifests"),
            ("monitor --type drop", "monitor goes on without an end: name --last or --count"),
            ("monitor --last -o wide", "--output: monitor has neither wide nor name; it takes table, "),
            ("monitor --last -o name", "--output: monitor has neither wide nor name; it takes table, "),
            ("flows --on", "--on has no value"),
            ("flows --node-timeout soon", "--node-timeout: \"soon\" is not accepted; takes a duration"),
            ("flows -o xml", "--output: \"xml\" is not accepted"),
            ("flowz", "there is no command 'flowz'; did you mean 'flows'?"),
            ("flows --limit 0", "--limit: \"0\" is not accepted"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.to_string().starts_with(said), "{line}: {error}");
            assert_eq!(error.status(), crate::cli::ExitStatus::Usage);
        }
    }
}
