//! An upgrade from a version with another map layout, and the way back, under load.

use std::net::SocketAddr;

use anyhow::ensure;
use millrace_lab::kubernetes::{Kubectl, Proxy, wait};
use millrace_lab::net::Namespace;
use serde_json::json;

use super::fixture::{CHANGE_LIMIT, proxy, shared};
use super::install::{roll_agents, wait_for_agents};
use super::storm::{Held, Storm};
use super::trouble::{HELD, put_steady};

/// The image of the former version, with map layout 3. xtask makes it with `--long`.
const FORMER: &str = "docker.io/library/millrace:former";

/// Short connections that show that all targets are served.
const ENOUGH: usize = 1000;

/// Gives the DaemonSet what differs in the former version: image, rights, and readiness probe.
fn install_former(kubectl: &Kubectl) {
    let container = "/spec/template/spec/containers/0";
    let set =
        |path: &str, value| json!({"op": "replace", "path": format!("{container}/{path}"), "value": value});
    let patch = json!([
        set("image", json!(FORMER)),
        set("securityContext", json!({"privileged": true})),
        set(
            "readinessProbe",
            json!({"httpGet": {"path": "/healthz", "port": "healthz"}, "periodSeconds": 10})
        ),
    ]);
    let patch = patch.to_string();
    kubectl.run(&["-n", "kube-system", "patch", "daemonset/millrace", "--type=json", "-p", &patch]).unwrap();
    wait_for_agents(kubectl).unwrap();
}

#[test]
fn an_upgrade_over_map_layouts_cuts_nothing_and_a_rollback_is_survived() {
    if proxy() != Proxy::Millrace || std::env::var_os("MILLRACE_LONG").is_none() {
        return;
    }
    let cluster = shared();
    let kubectl = cluster.kubectl();
    let targets = put_steady(&cluster);
    let namespace = cluster.namespace("outside").unwrap();
    install_former(&kubectl);

    let held = Held::open(&namespace, targets.clone(), HELD).unwrap();
    let storm = Storm::start(&namespace, targets.clone());
    roll_agents(&kubectl, "undo").unwrap();
    let made = storm.made();
    assert_eq!(storm.end().unwrap(), [""; 0], "of {made}, upward");
    let kept = held.end().unwrap();
    assert_eq!(kept, HELD * targets.len());
    println!("upward: {kept} long connections kept, 0 of {made} short ones failed");

    let held = Held::open(&namespace, targets.clone(), HELD).unwrap();
    let storm = Storm::start(&namespace, targets.clone());
    roll_agents(&kubectl, "undo").unwrap();
    let made = storm.made();
    let failures = storm.end().unwrap();
    println!("back: {} of {made} short connections failed: {failures:?}", failures.len());
    println!("back: {:?} of {} long connections kept", held.end_counting(), HELD * targets.len());

    // The former version serves, and so does the newer one after it.
    assert_serves(&namespace, &targets);
    roll_agents(&kubectl, "undo").unwrap();
    assert_serves(&namespace, &targets);
}

fn assert_serves(namespace: &Namespace, targets: &[SocketAddr]) {
    let storm = Storm::start(namespace, targets.to_vec());
    let enough = wait("short connections", CHANGE_LIMIT, || {
        ensure!(storm.made() >= ENOUGH || storm.has_ended(), "only {} were made", storm.made());
        Ok(())
    });
    assert_eq!(storm.end().unwrap(), [""; 0]);
    enough.unwrap();
}
