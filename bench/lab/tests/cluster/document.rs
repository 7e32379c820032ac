//! The commands of docs/install.md, as they stand there.

use std::fs;
use std::net::SocketAddr;

use millrace_lab::kubernetes::{Assets, Cluster, Proxy, wait};
use serde_json::json;

use super::clients::{Client, Protocol};
use super::fixture::{CHANGE_LIMIT, NODES, Service, assets, proxy, shared};
use super::install::wait_for_agents;
use super::objects::service;

/// Returns the block of the document that has this name.
fn block(name: &str) -> String {
    let text = fs::read_to_string(Assets::repository().join("docs/install.md")).unwrap();
    let marker = format!("<!-- A test runs the next block in a cluster: {name} -->");
    let lines = text.lines().map(str::trim).skip_while(|line| *line != marker).skip(1);
    let mut lines = lines.peekable();
    assert_eq!(lines.next(), Some("```sh"), "{name}");
    lines.take_while(|line| *line != "```").collect::<Vec<_>>().join("\n")
}

/// Runs a block, and returns what it prints.
fn run(cluster: &Cluster, name: &str) -> String {
    let output = cluster.shell(&block(name), &assets().unwrap()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns what a node has of Millrace: pins, and programs on its device.
fn remains(cluster: &Cluster, number: u8) -> String {
    // The kernel's own two files are there in each BPF file system.
    let script = "ls /sys/fs/bpf | grep -v debug; ip -details link show eth0 | grep -o 'prog/xdp.*' || true";
    let mut command = cluster.command(&format!("node-{number}"), &["sh", "-c", script]).unwrap();
    String::from_utf8_lossy(&command.output().unwrap().stdout).into_owned()
}

#[test]
fn the_documents_commands_uninstall_and_install() {
    if proxy() != Proxy::Millrace {
        return;
    }
    let cluster = shared();
    let object = service("documented", "web", json!({}));
    let service = Service::put(&cluster.kubectl(), object, &[]).unwrap();
    let target = SocketAddr::new(service.cluster_ips()[0].parse().unwrap(), 80);
    let client = Client::in_pod(&cluster, 1).unwrap();
    wait("an answer", CHANGE_LIMIT, || client.ask(Protocol::Http, target, "hostname")).unwrap();

    run(&cluster, "uninstall");
    for number in 1..=NODES {
        assert_eq!(remains(&cluster, number).trim(), "", "node-{number} is not clean");
    }
    client.ask(Protocol::Http, target, "hostname").unwrap_err();

    let printed = run(&cluster, "install");
    wait("an answer", CHANGE_LIMIT, || client.ask(Protocol::Http, target, "hostname")).unwrap();
    assert!(printed.contains(": Ready; ") && printed.contains("problems none"), "{printed}");

    cluster.install_millrace(&assets().unwrap()).unwrap();
    wait_for_agents(&cluster.kubectl()).unwrap();
}
