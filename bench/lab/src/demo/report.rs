//! The tables of the demonstration.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use super::plan::Example;
use crate::agent::Proxy;
use crate::cluster::Cluster;
use crate::walk::Row;

/// Prints columns as wide as their longest cell.
fn print_table<const N: usize>(heads: [&str; N], rows: &[[String; N]]) {
    let widths = std::array::from_fn::<usize, N, _>(|column| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(heads.get(column).map_or(0, |head| head.len()))
    });
    let print = |cells: [&str; N]| {
        let padded: Vec<_> =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        println!("{}", padded.join("  ").trim_end());
    };
    print(heads);
    for row in rows {
        print(row.each_ref().map(String::as_str));
    }
}

/// Prints the requests as each backend saw them.
pub(super) fn print_rows(rows: &[(&Example, Row)]) {
    let cells: Vec<_> = rows
        .iter()
        .map(|(example, row)| {
            [
                example.walk.service.clone(),
                example.what.to_owned(),
                format!("{} {}", row.family, row.protocol.name()),
                row.frontend.to_string(),
                row.backend.clone(),
                row.peer.to_string(),
                row.trail.to_string(),
                row.requests.to_string(),
            ]
        })
        .collect();
    print_table(
        ["SERVICE", "KIND", "OVER", "CLIENT ASKED", "BACKEND", "BACKEND SAW", "WAY (CAPTURED)", "REQUESTS"],
        &cells,
    );
}

/// Prints the attached programs and their counters.
pub(super) fn print_nodes(proxies: &[Proxy], problems: &mut Vec<String>) -> Result<()> {
    let mut cells = Vec::new();
    for proxy in proxies {
        let attached = proxy.attached()?;
        let hooks: Vec<_> =
            attached.iter().map(|a| format!("{}:{} ({})", a.device, a.hook, a.mode)).collect();
        let mut counted = BTreeMap::<String, Vec<String>>::new();
        for counter in proxy.counters()?.into_iter().filter(|counter| counter.packets > 0) {
            let text = format!("{} {}", counter.reason, counter.packets);
            if counter.drop {
                problems.push(format!("{}: {} packets were dropped: {text}", proxy.node(), counter.packets));
            }
            counted.entry(counter.program.into_owned()).or_default().push(text);
        }
        let counted: Vec<_> =
            counted.iter().map(|(program, reasons)| format!("{program}: {}", reasons.join(", "))).collect();
        cells.push([proxy.node().to_owned(), hooks.join(" "), counted.join("; ")]);
    }
    println!();
    print_table(["NODE", "HOOKS", "PACKETS BY PROGRAM AND REASON"], &cells);
    Ok(())
}

/// Returns commands to try by hand.
pub(super) fn hints(cluster: &Cluster, binary: &Path) -> String {
    let client = cluster.bed().client().name();
    let mut lines = vec![
        "Try, as root, while this stays up:".to_owned(),
        format!("  ip netns exec {client} curl http://203.0.113.10/"),
        format!("  ip netns exec {client} curl -g 'http://[2001:db8:e::30]/'"),
        format!("  ip netns exec {} tcpdump -ni node2", cluster.bed().router().name()),
    ];
    if let Some(proxy) = cluster.proxies().first() {
        lines.extend(["services", "flows"].map(|subject| {
            format!(
                "  nsenter --net=/run/netns/{} {} {subject} --bpffs-path {}",
                proxy.namespace().name(),
                binary.display(),
                proxy.bpffs().display()
            )
        }));
    }
    lines.push(format!("The agents follow the manifests in {}", cluster.manifests().path().display()));
    lines.join("\n")
}
