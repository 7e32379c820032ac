//! Foreign programs ask Services, unmodified: a pod and a process of the node through socket hooks,
//! a client outside through the uplink.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::manifests::Service;
use millrace_lab::net::Namespace;
use millrace_lab::process::{Process, output};
use millrace_lab::topology::{Dual, Family, vip};
use serde_json::Value;

use crate::fixture::shared;

/// Returns the callers: a name, a namespace, and the address of the Service that the caller asks.
fn callers<'a>(cluster: &'a Cluster, service: &Service, outside: Dual) -> Result<[(&'a Namespace, Dual); 3]> {
    let bed = cluster.bed();
    let inside = service.cluster_ips();
    Ok([
        (bed.pod("pod-1a")?.namespace(), inside),
        (bed.node(1)?.namespace(), inside),
        (bed.client(), outside),
    ])
}

/// Starts a server in a pod and waits until it listens. No trial connection is made, because some
/// servers accept only one.
fn start(cluster: &Cluster, pod: &str, words: &[&str], port: u16) -> Result<Process> {
    let pod = cluster.bed().pod(pod)?;
    let (program, arguments) = words.split_first().context("no program")?;
    let arguments = arguments.iter().map(|word| (*word).to_owned()).collect();
    let log = cluster.bed().directory().join(format!("{program}.log"));
    let server = Process::start(pod.namespace(), PathBuf::from(program), arguments, &log)?;
    pod.namespace().run(async move || {
        for _ in 0..1000 {
            if has_listener(port)? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        anyhow::bail!("nothing listens at port {port}")
    })?;
    ensure!(server.is_running(), "{}", std::fs::read_to_string(&log)?);
    Ok(server)
}

/// Returns whether a TCP socket of this thread's network namespace listens at a port.
fn has_listener(port: u16) -> Result<bool> {
    /// The kernel's number of the state "listening".
    const LISTEN: &str = "0A";
    let local = format!(":{port:04X}");
    let listens = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|at| at.ends_with(&local)) && words.nth(1) == Some(LISTEN)
    };
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"].map(std::fs::read_to_string);
    tables.into_iter().try_fold(false, |found, table| Ok(found || table?.lines().any(listens)))
}

fn url(address: Dual, family: Family) -> String {
    format!("http://{}/", SocketAddr::new(address.of(family), 80))
}

/// Applies the Service of all HTTP and datagram clients.
fn web(cluster: &Cluster, number: u8, backend: &str) -> Result<Service> {
    let service = cluster.service(&format!("web-{number}"), number, &[backend])?.load_balancer(vip(number));
    cluster.apply(&service, &[1])?;
    Ok(service)
}

#[test]
fn curl_fetches_a_page() -> Result<()> {
    let cluster = shared();
    let service = web(&cluster, 240, "pod-2a")?;
    for (namespace, address) in callers(&cluster, &service, vip(240))? {
        for family in Family::ALL {
            let url = url(address, family);
            let page = output(namespace, &["curl", "-gsS", "--max-time", "20", &url])?;
            let page: Value = serde_json::from_str(&page).with_context(|| page.clone())?;
            assert_eq!(page["backend"], "pod-2a", "{}", namespace.name());
        }
    }
    Ok(())
}

#[test]
fn dig_asks_a_name_server() -> Result<()> {
    const PORT: u16 = 5353;
    let cluster = shared();
    let flags = "dnsmasq --keep-in-foreground --conf-file=/dev/null --pid-file= --no-resolv --no-hosts --bind-interfaces \
                 --except-interface=lo --user=root --port=5353 --address=/millrace.test/192.0.2.53";
    let _server = start(&cluster, "pod-1b", &flags.split_whitespace().collect::<Vec<_>>(), PORT)?;
    let bed = cluster.bed();
    let service = Service::new("dns", 241).port(53, PORT).pod(bed.node(1)?, bed.pod("pod-1b")?);
    let service = service.load_balancer(vip(241));
    cluster.apply(&service, &[1])?;
    for (namespace, address) in callers(&cluster, &service, vip(241))? {
        for (family, protocol) in Family::ALL.into_iter().flat_map(|f| ["+notcp", "+tcp"].map(|p| (f, p))) {
            let server = format!("@{}", address.of(family));
            let words = ["dig", &server, protocol, "+short", "+tries=1", "+time=10", "millrace.test"];
            assert_eq!(output(namespace, &words)?.trim(), "192.0.2.53", "{} {words:?}", namespace.name());
        }
    }
    Ok(())
}

#[test]
fn iperf3_measures_by_both_protocols_in_both_directions_and_over_eight_connections() -> Result<()> {
    const PORT: u16 = 5201;
    // The flags, and the number of bytes to send.
    const KINDS: [(&[&str], u64); 4] = [
        (&[], 32_000_000),
        (&["--udp", "--bitrate", "20M"], 1_000_000),
        (&["--reverse"], 32_000_000),
        (&["--parallel", "8"], 32_000_000),
    ];
    let cluster = shared();
    let bed = cluster.bed();
    let service = Service::new("iperf", 242).port(PORT, PORT).pod(bed.node(2)?, bed.pod("pod-2a")?);
    let service = service.load_balancer(vip(242));
    cluster.apply(&service, &[1])?;
    for (namespace, address) in callers(&cluster, &service, vip(242))? {
        for (family, (kind, asked)) in Family::ALL.into_iter().flat_map(|f| KINDS.map(|k| (f, k))) {
            let (size, server) = (asked.to_string(), address.of(family).to_string());
            let mut words = vec!["iperf3", "--client", &server, "--bytes", &size, "--json"];
            words.extend(kind);
            // Each test has a server of its own. A server closes its socket after a test, and a
            // client in that moment is refused.
            let _server = start(&cluster, "pod-2a", &["iperf3", "--server", "--one-off"], PORT)?;
            let report: Value = serde_json::from_str(&output(namespace, &words)?)?;
            // The report for datagrams has one sum of both directions.
            let sum = ["sum_received", "sum"].into_iter().find_map(|name| report["end"].get(name));
            let bytes = sum.and_then(|sum| sum["bytes"].as_u64()).unwrap_or_default();
            // Bytes in the sockets' buffers at the end do not count. With eight sockets, that is
            // most of them.
            ensure!(
                bytes >= asked / 10,
                "{} {words:?}: {:?}",
                namespace.name(),
                [&report["error"], &report["start"]["connected"], &report["end"]]
            );
        }
    }
    Ok(())
}

/// Runs a client, which fetches a page, then sends a datagram from a connected socket. It prints
/// the backend of both answers, and the sender of the datagram.
fn talk(command: &[&str], number: u8) -> Result<()> {
    let cluster = shared();
    let service = web(&cluster, number, "pod-2b")?;
    for (namespace, address) in callers(&cluster, &service, vip(number))? {
        for family in Family::ALL {
            let target = SocketAddr::new(address.of(family), 80);
            let text = target.to_string();
            let said = output(namespace, &[command, &[text.as_str()]].concat())?;
            assert_eq!(said.trim(), format!("pod-2b pod-2b {target}"), "{}", namespace.name());
        }
    }
    Ok(())
}

#[test]
fn a_python_client_talks() -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/namespace/programs/client.py");
    talk(&["python3", script], 243)
}

#[test]
fn a_go_client_talks() -> Result<()> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/namespace/programs/client.go");
    let client = concat!(env!("CARGO_TARGET_TMPDIR"), "/client");
    let built = std::process::Command::new("go").args(["build", "-o", client, source]).output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    talk(&[client], 244)
}
