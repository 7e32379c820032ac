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

#[test]
fn the_control_plane_is_measured_and_every_part_ends_in_the_right_state() {
    let short = ["--scale", "100x3", "--runs", "1", "--changes", "20", "--seconds", "1"];
    let report = run(&[&["control"][..], &short].concat());
    assert!(figures(&report).len() > 20, "{report}");
    let report = run(&[&["control", "--dual-stack", "--only", "stages"][..], &short].concat());
    assert!(figures(&report).len() >= 10, "{report}");
}

/// Returns the figures of a document, each with the title of its group, after a check of what every figure
/// must have.
fn figures(report: &Value) -> Vec<(&str, &Value)> {
    assert_eq!(report["version"], 1, "{report}");
    let sections = report["sections"].as_array().unwrap();
    for section in sections {
        let environment = &section["environment"];
        assert!(environment["kernel"].as_str().is_some_and(|kernel| !kernel.is_empty()), "{environment}");
        assert!(environment["cores"].as_u64().is_some_and(|cores| cores > 0), "{environment}");
    }
    let mut figures = Vec::new();
    for group in sections.iter().flat_map(|section| section["groups"].as_array().unwrap()) {
        let title = group["title"].as_str().unwrap();
        figures.extend(group["figures"].as_array().unwrap().iter().map(|figure| (title, figure)));
    }
    for (_, figure) in &figures {
        let spread = &figure["spread"];
        let [q1, median, q3] = ["q1", "median", "q3"].map(|key| spread[key].as_f64().unwrap());
        assert!(q1 <= median && median <= q3, "{figure}");
    }
    figures
}

#[test]
fn every_walk_of_a_packet_is_measured_and_ends_with_the_right_action_and_frame() {
    // The walks and hooks in both families; new connections; the default size of a Maglev table.
    for (case, least) in
        [("flows: 1, services: 1", 70), ("flows: ever new", 10), ("slots: 4093", 2), ("firewall", 16)]
    {
        let report = run(&["packets", "--case", case, "--rounds", "100", "--samples", "2"]);
        assert!(figures(&report).len() >= least, "{case}: {report}");
    }
}

/// Returns the median of a figure.
fn median(figure: &Value) -> f64 {
    figure["spread"]["median"].as_f64().unwrap()
}

#[test]
fn frames_of_every_side_arrive_as_expected() {
    let document = run(&["rate", "--spells", "1", "--milliseconds", "20", "--flows", "10"]);
    let figures = figures(&document);
    // Four cases, two families, one processor or two; at least a bare loop and Millrace's two sides.
    assert!(figures.len() >= 24, "{document}");
    for (title, figure) in figures {
        assert!(median(figure) > 0.0, "{title}: {figure}");
        // The bench checks the frames. Nearly all must arrive.
        assert!(figure["details"]["arrived, %"].as_f64().unwrap() > 50.0, "{title}: {figure}");
    }
    let missing = document["sections"][0]["left_out"].to_string();
    assert!(!missing.contains("to a pod of the node") && !missing.contains("to another node"), "{missing}");
}

#[test]
fn a_new_endpoint_gets_packets_after_every_change() {
    let document = run(&["change", "--services", "10", "--changes", "3", "--pause", "100"]);
    let figures = figures(&document);
    assert!(!figures.is_empty(), "{document}");
    assert!(figures.iter().all(|(_, figure)| figure["spread"]["samples"] == 3), "{document}");
}

#[test]
fn millrace_cuts_fewer_simulated_connections_than_the_other_rules() {
    let small = ["simulate", "--nodes", "200", "--connections", "500", "--slots", "251", "--scenario", "all"];
    let document = run(&small);
    let figures = figures(&document);
    assert_eq!(figures.len(), 8, "four kinds of rules, two kinds of routers: {document}");
    for router in figures.chunks(4) {
        let [own, others @ ..] = router else { panic!("{document}") };
        assert_eq!(own.1["subject"], "Millrace");
        assert!(others.iter().all(|(_, other)| median(own.1) < median(other)), "{document}");
    }
}

#[test]
fn the_programs_are_counted_and_appear_on_the_page_of_the_report() {
    let folder = std::env::temp_dir().join(format!("millrace-report-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let [document, page, merged] =
        ["programs.json", "report.html", "report.json"].map(|name| folder.join(name).display().to_string());
    let counted = run(&["programs", "--samples", "1", "--save", &document]);
    let counts = figures(&counted);
    let xdp = counts.iter().filter(|(_, figure)| figure["name"] == "xdp_ingress").count();
    assert_eq!(xdp, 8, "three counts and a time, with and without all features: {counted}");
    assert!(counts.iter().all(|(_, figure)| median(figure) > 0.0), "{counted}");

    let report = ["report", &document, "--html", &page, "--save", &merged, "--compare", &document];
    let output = Command::new(env!("CARGO_BIN_EXE_millrace-bench")).args(report).output().unwrap();
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{complaints}");
    assert!(said.starts_with(&format!("0 of {} figures changed", counts.len())), "{said}");
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.contains("xdp_ingress") && text.contains("<svg "), "{}", text.len());
    let read = |path: &str| serde_json::from_str::<Value>(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(read(&merged), counted);
    assert_eq!(read(&document), counted);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn memory_grows_with_every_kind_of_object() {
    let document = run(&["memory", "--runs", "1", "--services", "100,2000", "--endpoints", "1,5"]);
    let figures = figures(&document);
    assert_eq!(figures.len(), 10, "{document}");
    // A small cluster's share of an agent is within the noise. The maps' sizes are exact.
    let maps = figures.iter().filter(|(title, _)| *title == "the maps");
    assert!(maps.clone().all(|(_, figure)| median(figure) > 0.0), "{document}");
    assert_eq!(maps.count(), 6, "{document}");
}

#[test]
fn connections_are_compared_with_the_pod_itself_nftables_and_plain_forwarding() {
    let short = ["--pairs", "1", "--milliseconds", "50", "--services", "1"];
    let document = run(&[&["connections"][..], &short].concat());
    let figures = figures(&document);
    assert!(figures.iter().all(|(_, figure)| median(figure) > 0.0), "{document}");
    let of_group = |title: &str| figures.iter().filter(|(of, _)| *of == title).count();
    // Both families: two spells beside the pod, one beside nftables, one beside plain forwarding. The real
    // kube-proxy adds others if its programs are there.
    assert!(of_group("rate beside another's") >= 8, "{document}");
    assert!(of_group("set-up of a connection") >= 8, "{document}");
}
