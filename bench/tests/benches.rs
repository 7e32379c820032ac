//! Each benchmark in a short form. The figures mean nothing, but the checks do.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test that can't go on must fail")]

use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs a benchmark and returns its output.
fn run(arguments: &[&str]) -> Value {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_millrace-bench"));
    let output = bench.args(arguments).arg("--json").stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}\n{said}", output.status);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{said}"))
}

/// Returns the number of rows in a benchmark's output.
fn rows(value: &Value) -> usize {
    match value {
        Value::Array(rows) => rows.len(),
        Value::Object(fields) => fields.values().map(rows).sum(),
        _ => 0,
    }
}

#[test]
fn the_control_plane_is_measured_and_every_part_ends_in_the_right_state() {
    let short = ["--scale", "100x3", "--runs", "1", "--changes", "20", "--seconds", "1"];
    let figures = run(&[&["control"][..], &short].concat());
    assert!(rows(&figures) > 0, "{figures}");
    let figures = run(&[&["control", "--dual-stack", "--only", "stages"][..], &short].concat());
    assert!(rows(&figures) > 0, "{figures}");
}

#[test]
fn every_walk_of_a_packet_is_measured_and_its_last_round_is_the_right_one() {
    for case in ["flows: 1, services: 1", "flows: ever new"] {
        let figures = run(&["packets", "--case", case, "--rounds", "100", "--samples", "1"]);
        assert!(rows(&figures) >= 10, "{figures}");
    }
}

#[test]
fn connections_are_compared_with_the_pod_itself_nftables_and_plain_forwarding() {
    let figures = run(&["connections", "--pairs", "1", "--milliseconds", "50", "--services", "1"]);
    let figures = figures.as_array().unwrap();
    // Both families: two spells beside the pod, one beside nftables, one beside plain forwarding.
    assert_eq!(figures.len(), 8, "{figures:?}");
    let is_positive = |figure: &Value| figure["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0);
    assert!(figures.iter().all(is_positive), "{figures:?}");
}
