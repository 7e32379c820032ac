//! `millrace bugtool`: what this node shows, in an archive for a report.

use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;

use super::error::CliError;
use super::output::write_out;
use super::place::Place;

/// The outputs of Millrace: file and arguments. A command ends by itself, and soon: `kubectl millrace bugtool` waits
/// for each on all nodes. Left out are those that change the node or take an argument.
pub const COMMANDS: [(&str, &[&str]); 17] = [
    ("version.json", &["version", "-o", "json"]),
    ("status.txt", &["status"]),
    ("status.json", &["status", "-o", "json"]),
    ("ready.txt", &["ready"]),
    ("check.json", &["check", "--timeout", "3s", "-o", "json"]),
    ("services.json", &["services", "-o", "json"]),
    ("backends.json", &["backends", "-o", "json"]),
    ("flows.json", &["flows", "--limit", "10000", "-o", "json"]),
    ("ways.json", &["ways", "-o", "json"]),
    ("announced.json", &["announced", "-o", "json"]),
    ("policies.json", &["policies", "-o", "json"]),
    ("counters.json", &["counters", "--all", "-o", "json"]),
    ("maps.json", &["maps", "-o", "json"]),
    ("programs.json", &["programs", "-o", "json"]),
    ("top.json", &["top", "--once", "--delay", "1s", "--rows", "1000", "-o", "json"]),
    (
        "top-backends.json",
        &["top", "--view", "backends", "--once", "--delay", "1s", "--rows", "1000", "-o", "json"],
    ),
    ("monitor.jsonl", &["monitor", "--last", "10000", "-o", "jsonl"]),
];

/// The outputs of the node: file and command. A program that is missing is named in its file.
const OF_NODE: [(&str, &[&str]); 8] = [
    ("node/uname.txt", &["uname", "-a"]),
    ("node/links.txt", &["ip", "-details", "-statistics", "link"]),
    ("node/addresses.txt", &["ip", "address"]),
    ("node/rules.txt", &["ip", "rule"]),
    ("node/routes.txt", &["ip", "route", "show", "table", "all"]),
    ("node/neighbours.txt", &["ip", "neighbour"]),
    ("node/nftables.txt", &["nft", "list", "ruleset"]),
    ("node/bpf.txt", &["bpftool", "net"]),
];

/// Settings of the host that packets depend on.
const SETTINGS: [&str; 6] = [
    "net/ipv4/ip_forward",
    "net/ipv6/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/core/bpf_jit_enable",
];

/// Arguments of `millrace bugtool`.
#[derive(Args, Clone, Debug)]
pub struct BugtoolArgs {
    /// The archive [default: millrace-bugtool-TIME.tar.gz here]
    #[arg(short = 'O', long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

/// Writes the archive. It has addresses and names of Services, and no secrets.
pub fn run(args: &BugtoolArgs) -> Result<(), CliError> {
    let program = env::current_exe()?;
    let mut archive = Archive::create(args.output_file.clone().unwrap_or_else(default_path))?;
    for (name, words) in COMMANDS {
        let mut command = Command::new(&program);
        command.args(words).arg("--bpffs-path").arg(&args.place.bpffs_path);
        archive.add_command(name, &mut command)?;
    }
    for (name, words) in OF_NODE {
        if let [program, words @ ..] = words {
            archive.add_command(name, Command::new(program).args(words))?;
        }
    }
    let settings = SETTINGS.map(|name| {
        let value = fs::read_to_string(Path::new("/proc/sys").join(name));
        format!("{name} = {}\n", value.unwrap_or_else(|error| error.to_string()).trim())
    });
    archive.add("node/sysctl.txt", &settings.concat())?;
    Ok(write_out(&format!("{}\n", archive.finish()?))?)
}

/// Returns both outputs of a command, or why it can't be run. The status does not matter: `check` ends with 4 if it
/// found something.
fn outputs(command: &mut Command) -> [String; 2] {
    let program = command.get_program().to_string_lossy().into_owned();
    match command.output() {
        Ok(output) => [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()),
        Err(error) => [String::new(), format!("{program}: {error}\n")],
    }
}

/// Returns the name of an archive of now, in the current folder.
pub fn default_path() -> PathBuf {
    let time = Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    format!("millrace-bugtool-{time}.tar.gz").into()
}

/// An archive that is being written: its files are in a folder of its name. Until it is whole, its own name ends in
/// `.partial`.
pub struct Archive {
    path: PathBuf,
    partial: PathBuf,
    builder: tar::Builder<GzEncoder<File>>,
    /// The time of all files.
    time: u64,
    count: usize,
}

impl Archive {
    /// Opens the archive, so that a path that can't be written is told before anything is asked.
    pub fn create(path: PathBuf) -> io::Result<Self> {
        let mut partial = path.clone().into_os_string();
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        let file = File::create(&partial)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let builder = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        let time = u64::try_from(Timestamp::now().as_second()).unwrap_or(0);
        Ok(Self { path, partial, builder, time, count: 0 })
    }

    /// Adds a file.
    pub fn add(&mut self, name: &str, text: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        self.count += 1;
        self.builder.append_data(&mut header, Path::new("millrace-bugtool").join(name), text.as_bytes())
    }

    /// Runs a command, and adds what it wrote.
    fn add_command(&mut self, name: &str, command: &mut Command) -> io::Result<()> {
        let [output, errors] = outputs(command);
        self.add_output(name, output, &errors)
    }

    /// Adds the output of a command, or why there is none. What it says beside an output has a file of its own, so
    /// that JSON stays JSON.
    pub fn add_output(&mut self, name: &str, output: String, errors: &str) -> io::Result<()> {
        if output.is_empty() || errors.is_empty() {
            return self.add(name, &(output + errors));
        }
        self.add(name, &output)?;
        self.add(&format!("{name}.errors"), errors)
    }

    /// Ends the archive. Returns its path and the number of its files.
    pub fn finish(self) -> io::Result<String> {
        self.builder.into_inner()?.finish()?.flush()?;
        fs::rename(&self.partial, &self.path)?;
        Ok(format!("{}: {} files", self.path.display(), self.count))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;
    use crate::cli::command;

    #[test]
    fn an_archive_has_the_files_in_a_folder_of_its_own() {
        let path = env::temp_dir().join(format!("millrace-bugtool-{}.tar.gz", std::process::id()));
        let mut written = Archive::create(path.clone()).unwrap();
        written.add("node-a/status.txt", "Ready\n").unwrap();
        written.add("b", "").unwrap();
        written.add_output("c.json", "{}".to_owned(), "millrace: 1 failed\n").unwrap();
        written.add_output("d.txt", String::new(), "nft: not found\n").unwrap();
        assert!(!path.exists(), "it is not whole");
        assert_eq!(written.finish().unwrap(), format!("{}: 5 files", path.display()));
        let mut archive = tar::Archive::new(GzDecoder::new(File::open(&path).unwrap()));
        let mut files = Vec::new();
        for entry in archive.entries().unwrap() {
            let (mut entry, mut text) = (entry.unwrap(), String::new());
            entry.read_to_string(&mut text).unwrap();
            files.push((entry.path().unwrap().display().to_string(), text));
        }
        std::fs::remove_file(path).unwrap();
        let expected = [
            ("node-a/status.txt", "Ready\n"),
            ("b", ""),
            ("c.json", "{}"),
            ("c.json.errors", "millrace: 1 failed\n"),
            ("d.txt", "nft: not found\n"),
        ];
        let expected = expected.map(|(name, text)| (format!("millrace-bugtool/{name}"), text.to_owned()));
        assert_eq!(files, expected);
    }

    #[test]
    fn a_path_that_can_not_be_written_is_named_at_once() {
        let error = Archive::create("/nonexistent/a.tar.gz".into()).err().unwrap().to_string();
        assert!(error.starts_with("/nonexistent/a.tar.gz: No such file"), "{error}");
    }

    #[test]
    fn the_command_line_takes_every_command_of_the_archive() {
        for (name, words) in COMMANDS {
            let parsed = command().try_get_matches_from(["millrace"].iter().chain(words));
            assert!(parsed.is_ok(), "{name}: {parsed:?}");
        }
    }

    #[test]
    fn the_archive_has_every_command_that_only_reads_and_help_names_them() {
        const OTHERS: [&str; 9] =
            ["agent", "controller", "explain", "bugtool", "cleanup", "completion", "man", "echo", "probe"];
        let command = command();
        let bugtool = command.find_subcommand("bugtool").unwrap();
        let help = bugtool.get_long_about().unwrap().to_string();
        let is_named = |name: &str| help.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == name);
        for name in command.get_subcommands().map(clap::Command::get_name) {
            let is_inside = COMMANDS.iter().any(|(_, words)| words[0] == name);
            assert_eq!(is_inside, !OTHERS.contains(&name), "{name}");
            assert!(!is_inside || is_named(name), "{name}");
        }
        for (_, words) in OF_NODE {
            assert!(is_named(words[0]), "{words:?}");
        }
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let [output, errors] = outputs(&mut Command::new("/nonexistent/nft"));
        assert!(output.is_empty() && errors.starts_with("/nonexistent/nft: "), "{output} {errors}");
    }

    #[test]
    fn a_command_that_found_something_keeps_its_output_whole() {
        let mut found = Command::new("sh");
        found.args(["-c", "echo '{}'; echo 'millrace: not all is well: uplinks' >&2; exit 4"]);
        assert_eq!(outputs(&mut found), ["{}\n", "millrace: not all is well: uplinks\n"]);
    }
}
