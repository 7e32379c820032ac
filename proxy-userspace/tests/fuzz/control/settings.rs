//! Flags and KubeProxyConfiguration files with faults.

use std::fs;
use std::path::Path;

use clap::{CommandFactory, Parser};
use millrace::config::{ConfigError, Settings};
use millrace::metrics::{Metrics, Pages};

use super::node::Agent;
use super::{assert_is_one_line, mutate, play};
use crate::folder::Folder;

/// Inputs of a usual run.
const INPUTS: u64 = 3000;

/// Values that some flag takes.
const VALUES: [&str; 40] = [
    "kubernetes",
    "directory:/manifests",
    "auto",
    "native",
    "generic",
    "off",
    "ebpf",
    "ipvs",
    "none",
    "true",
    "false",
    "all",
    "snat",
    "dsr",
    "random",
    "maglev",
    "251",
    "ipip",
    "fou",
    "node",
    "node,172.16.0.0/16",
    "pod",
    "0x1000/0x1000",
    "0/0",
    "1",
    "60",
    "3600",
    "30000-32767",
    "32768-60999",
    "10.0.0.0/8",
    "10.0.0.0/8,fd00::/8",
    "127.0.0.1:1",
    "0.0.0.0",
    "[::]:80",
    ":80",
    "eth0,eth1",
    "cali*",
    "text",
    "json",
    "/sys/fs/bpf",
];

#[test]
fn a_faulty_setting_is_refused_in_one_line_or_read() {
    let folder = Folder::new(&std::env::temp_dir(), "settings");
    let file = folder.path.join("config");
    let originals = ["everything.json", "kubeadm.yaml", "written.yaml"].map(original);
    let flags = flags();
    play(INPUTS, |random, given| {
        let mut line = vec!["agent".to_owned()];
        if random.one_in(2) {
            let original = random.pick(&originals);
            let text = mutate::text(random, original);
            given.note(String::from_utf8_lossy(&text));
            fs::write(&file, text).unwrap();
            line.extend(["--config".to_owned(), file.display().to_string()]);
        }
        for _ in 0..random.below(4) {
            let value = *random.pick(&VALUES);
            let value = if random.one_in(2) { value.into() } else { mutate::text(random, value) };
            line.push(format!("{}={}", random.pick(&flags), String::from_utf8_lossy(&value)));
        }
        given.note(line.join(" "));
        resolve(&line);
    });
}

/// Reads flags and file, and writes the page with the result.
fn resolve(line: &[String]) {
    let agent = match Agent::try_parse_from(line) {
        Ok(agent) => agent,
        Err(error) => {
            if let Some(refused) = ConfigError::of_flag(&error) {
                assert_is_one_line(&refused.to_string());
            }
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    match Settings::resolve_on(&agent.args, Some("node-1".to_owned())) {
        Ok(settings) => {
            drop(Pages::new(&settings, &Metrics::new()));
        }
        Err(error) => assert_is_one_line(&error.to_string()),
    }
}

fn original(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/config/file").join(name)).unwrap()
}

/// Returns all flags with a value, besides that of the file.
fn flags() -> Vec<String> {
    let command = Agent::command();
    let flags = command.get_arguments().filter_map(|argument| argument.get_long());
    flags.filter(|flag| !["config", "help"].contains(flag)).map(|flag| format!("--{flag}")).collect()
}
