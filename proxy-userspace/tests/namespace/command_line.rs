//! What the command line answers when it can't do what was asked.

use std::process::{Command, Output};

/// Nobody's cluster is asked: whoever runs the tests may have one.
fn millrace(arguments: &[&str]) -> Output {
    let mut command = Command::new(millrace_lab::agent::binary().unwrap());
    for variable in ["HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"] {
        command.env_remove(variable);
    }
    command.args(arguments).output().unwrap()
}

/// An agent that leaves its HTTP ports to others on this machine.
fn agent(arguments: &[&'static str]) -> Vec<&'static str> {
    let mut all = vec!["agent", "--healthz-bind-address", "", "--metrics-bind-address", ""];
    all.extend(arguments);
    all
}

/// The one line on standard error of a run that ended with `status`.
fn refusal(arguments: &[&str], status: i32) -> String {
    let output = millrace(arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {line}");
    assert_eq!(line.lines().count(), 1, "{arguments:?}: {line}");
    assert!(line.starts_with("millrace: "), "{line}");
    line
}

#[test]
fn a_wrong_value_ends_with_status_2_and_one_line_that_names_the_flag_and_what_it_takes() {
    let source = "--source=directory:/nowhere";
    for (arguments, words) in [
        (&["agent"][..], ["--source kubernetes", "--kubeconfig PATH"]),
        (&["agent", "--source", "ftp:x"], ["--source", "directory:PATH"]),
        (&["agent", source, "--xdp", "fast"], ["--xdp", "auto, native, generic or off"]),
        (&["agent", source, "--fwmark", "3/1"], ["--fwmark", "VALUE/MASK"]),
        (&["agent", source, "--maglev-table-size", "4096"], ["--maglev-table-size", "4093"]),
        (&["agent", source, "--timeout-udp", "0"], ["--timeout-udp", "1 to"]),
        (&["agent", source, "--timeout-udp", "-1"], ["--timeout-udp", "1 to"]),
        (&["agent", source, "--max-sync-interval", "-1"], ["--max-sync-interval", "1 to"]),
        (&["agent", source, "--maglev-table-size", "-1"], ["--maglev-table-size", "prime"]),
        (&["flows", "--limit", "-1"], ["--limit", "from 1 on"]),
        (&["agent", source, "--colour", "red"], ["--colour", "unexpected argument"]),
        (&["services", "-o", "yaml"], ["--output", "table, json"]),
        (&["flows", "--limit", "none"], ["--limit", "from 1 on"]),
    ] {
        let line = refusal(arguments, 2);
        for word in words {
            assert!(line.contains(word), "{word} is not in {line}");
        }
    }
}

#[test]
fn a_source_directory_that_is_missing_ends_the_agent_as_a_wrong_value_does() {
    let line = refusal(&agent(&["--source", "directory:/nowhere/at/all"]), 2);
    assert!(line.contains("--source") && line.contains("/nowhere/at/all"), "{line}");
}

#[test]
fn a_path_where_no_bpf_file_system_can_be_is_called_that() {
    let empty = std::env::temp_dir().join(format!("millrace-no-manifests-{}", std::process::id()));
    std::fs::create_dir_all(&empty).unwrap();
    let source = format!("directory:{}", empty.display());
    let line = refusal(&[&agent(&["--bpffs-path", "/proc/nowhere"])[..], &["--source", &source]].concat(), 1);
    std::fs::remove_dir(&empty).unwrap();
    assert!(line.contains("/proc/nowhere is no BPF file system"), "{line}");
}

#[test]
fn where_nothing_is_pinned_every_view_says_so() {
    for view in ["status", "services", "backends", "flows"] {
        let line = refusal(&[view, "--bpffs-path", "/sys/fs/bpf/millrace-nobody"], 1);
        assert!(line.contains("/sys/fs/bpf/millrace-nobody"), "{line}");
    }
}
