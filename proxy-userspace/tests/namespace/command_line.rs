//! The answers of the command line to impossible requests.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use millrace_lab::container::contain;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use proxy_common::LAYOUT_VERSION;

/// The commands that read the pinned maps.
const VIEWS: [&str; 9] =
    ["status", "services", "backends", "flows", "ways", "announced", "counters", "maps", "programs"];

/// Runs the command line without the user's kubeconfig, so that it asks no real cluster.
fn millrace(arguments: &[&str]) -> Output {
    let mut command = Command::new(millrace_lab::agent::binary().unwrap());
    for variable in ["HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST"] {
        command.env_remove(variable);
    }
    command.args(arguments).output().unwrap()
}

/// Returns the arguments of an agent without HTTP ports, which others on this machine may use.
fn agent(arguments: &[&'static str]) -> Vec<&'static str> {
    let mut all = vec!["agent", "--healthz-bind-address", "", "--metrics-bind-address", ""];
    all.extend(arguments);
    all
}

/// Returns the only line on standard error of a run that ended with `status`.
fn refusal(arguments: &[&str], status: i32) -> String {
    let output = millrace(arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
    let (said, line) = text.trim_end().rsplit_once('\n').unwrap_or(("", text.trim_end()));
    assert!(said.lines().all(|line| line.contains(" INFO ")), "{arguments:?}: {text}");
    assert!(!said.contains("sysctl"), "no setting of the host is changed: {text}");
    assert!(line.starts_with("millrace: "), "{text}");
    line.to_owned()
}

#[test]
fn a_wrong_value_ends_with_status_2_and_one_line_that_names_the_flag_and_what_it_takes() {
    let source = "--source=directory:/nowhere";
    for (arguments, words) in [
        (&["agent"][..], ["no API server is configured", "--kubeconfig PATH"]),
        (&["controller"], ["no API server is configured", "--kubeconfig PATH"]),
        (&["controller", "--service-lb-class", "a/b/c"], ["--service-lb-class", "millrace.dev/node-ip"]),
        (&["controller", "--service-lb-default", "no"], ["--service-lb-default", "true or false"]),
        (&["controller", "--lease-namespace", "Kube"], ["--lease-namespace", "namespace"]),
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
        (&["services", "-o", "xml"], ["--output", "table, wide, json"]),
        (&["services", "a/b/c"], ["SERVICE", "NAMESPACE/NAME:PORT"]),
        (&["flows", "--limit", "none"], ["--limit", "from 1 on"]),
        (&["sattus"], ["there is no command 'sattus'", "did you mean 'status'?"]),
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

/// Returns the command of an agent without manifests, in network and mount namespaces of its own.
fn agent_apart(bpffs: &str) -> Command {
    let mut command = Command::new(millrace_lab::agent::binary().unwrap());
    command.args(agent(&["--source", "directory:/nowhere"])).args(["--bpffs-path", bpffs]);
    let apart = || {
        let none: Option<&str> = None;
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)?;
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
        Ok(())
    };
    // SAFETY: between fork and exec the child makes system calls and nothing else.
    unsafe { command.pre_exec(apart) };
    command
}

#[test]
fn a_path_where_no_bpf_file_system_may_be_mounted_is_a_wrong_value() {
    let scratch = std::env::temp_dir().join(format!("millrace-no-bpffs-{}", std::process::id()));
    std::fs::create_dir_all(scratch.join("full")).unwrap();
    let (full, file) = (scratch.display().to_string(), "/proc/version".to_owned());
    for (path, why) in [
        (full.as_str(), "files in it"),
        ("/proc", "mount point"),
        ("/proc/nowhere", "can't be made"),
        (&file, "no directory"),
        ("run/bpf", "an absolute path"),
    ] {
        let output = agent_apart(path).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{path}: {line}");
        assert_eq!(line.lines().count(), 1, "{path}: {line}");
        for word in ["--bpffs-path", path, why] {
            assert!(line.contains(word), "{word} is not in {line}");
        }
    }
    std::fs::remove_dir_all(&scratch).unwrap();
}

#[test]
fn a_reader_that_has_seen_enough_of_the_help_is_no_failure() {
    for arguments in [
        &["--help"][..],
        &["help", "agent"],
        &["agent", "--help"],
        &["status", "--help"],
        &["--version"],
        &["version"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(millrace_lab::agent::binary().unwrap());
        let output = command.args(arguments).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn without_pinned_maps_every_view_says_so() {
    for view in VIEWS {
        let line = refusal(&[view, "--bpffs-path", "/sys/fs/bpf/millrace-nobody"], 5);
        assert!(line.contains("/sys/fs/bpf/millrace-nobody"), "{line}");
    }
}

#[test]
fn without_rights_every_view_names_the_place_and_the_remedy() {
    let scratch = std::env::temp_dir().join(format!("millrace-no-rights-{}", std::process::id()));
    std::fs::create_dir(&scratch).unwrap();
    std::fs::set_permissions(&scratch, std::fs::Permissions::from_mode(0o700)).unwrap();
    // Another owner's directory is closed to root without capabilities.
    std::os::unix::fs::chown(&scratch, Some(65534), Some(65534)).unwrap();
    for view in VIEWS {
        let mut command = Command::new(millrace_lab::agent::binary().unwrap());
        command.args([view, "--bpffs-path"]).arg(&scratch);
        contain(&mut command, 0);
        let output = command.output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(6), "{view}: {line}");
        let wanted = format!(
            "millrace: {}/millrace/v{LAYOUT_VERSION} can't be read: run as root, or with CAP_BPF (and CAP_NET_ADMIN)\n",
            scratch.display()
        );
        assert_eq!(line, wanted, "{view}");
    }
    std::fs::remove_dir(&scratch).unwrap();
}
