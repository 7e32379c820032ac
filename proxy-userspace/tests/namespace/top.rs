//! `millrace top` beside clients that ask all the time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use millrace_lab::cluster::Cluster;
use millrace_lab::topology::vip;
use millrace_lab::traffic::{Protocol, ask};
use serde_json::{Value, json};

use crate::fixture::own;

/// Returns the rows of `millrace top` of node 1, while a client asks a Service that answers, and one without
/// endpoints.
fn top(cluster: &Cluster, arguments: &[&str]) -> Result<Vec<Value>> {
    let ended = AtomicBool::new(false);
    let client = cluster.bed().client();
    thread::scope(|scope| {
        let asking = scope.spawn(|| -> Result<u32> {
            let mut answers = 0;
            while !ended.load(Ordering::Relaxed) {
                ask(client, Protocol::Tcp, SocketAddr::new(vip(1).v4.into(), 80))?;
                ensure!(ask(client, Protocol::Tcp, SocketAddr::new(vip(2).v4.into(), 80)).is_err());
                answers += 1;
            }
            Ok(answers)
        });
        let command = [&["top", "--once", "-d", "1s", "-o", "jsonl"], arguments].concat();
        let output = cluster.proxy(1)?.command(&command);
        ended.store(true, Ordering::Relaxed);
        let answers = asking.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
        let output = output?;
        ensure!(output.status.success() && answers > 0, "{output:?}");
        let text = String::from_utf8(output.stdout)?;
        text.lines().map(|line| serde_json::from_str(line).with_context(|| line.to_owned())).collect()
    })
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_default()
}

#[test]
fn top_shows_the_rates_of_services_endpoints_drops_and_programs() -> Result<()> {
    let cluster = own(1, 1)?;
    cluster.apply(&cluster.service("shown", 1, &["pod-1a"])?.load_balancer(vip(1)), &[1])?;
    cluster.manifests().put_service(&cluster.service("idle", 2, &[])?.load_balancer(vip(2)))?;
    let proxy = cluster.proxy(1)?;
    proxy.wait_until("the Service without endpoints is there", || {
        Ok(proxy.command(&["services", "default/idle"])?.status.success())
    })?;

    let rows = top(&cluster, &["--rows", "1", "--by", "conn/s"])?;
    let [row] = rows.as_slice() else { anyhow::bail!("{rows:?}") };
    assert_eq!(row["service"], "default/shown:tcp-80", "{row}");
    assert!(number(row, "connections_per_second") >= 1.0 && number(row, "bits_per_second") > 0.0, "{row}");
    assert!(number(row, "packets_per_second") >= 4.0, "a SYN, an ACK, a request and a FIN: {row}");
    assert!(number(row, "active") < 10.0, "all but the last ones are closed: {row}");

    let rows = top(&cluster, &["--view", "services", "idle:tcp-80"])?;
    assert_eq!((rows.len(), &rows[0]["drop_reason"]), (1, &json!("no_endpoint")), "{rows:?}");
    assert!(number(&rows[0], "drops_per_second") >= 1.0, "{rows:?}");

    let rows = top(&cluster, &["--view", "backends"])?;
    let busy = rows.first().context("no endpoint")?;
    assert!(number(busy, "connections_per_second") >= 1.0 && busy["local"] == json!(true), "{rows:?}");

    let rows = top(&cluster, &["--view", "drops"])?;
    let of_service = rows.iter().find(|row| row["service"] == "default/idle:tcp-80").context("no Service")?;
    let of_program = rows.iter().find(|row| row["program"].is_string()).context("no program")?;
    for row in [of_service, of_program] {
        assert_eq!(row["reason"], "no_endpoint", "{row}");
        assert!(number(row, "packets_per_second") >= 1.0, "{row}");
    }

    let rows = top(&cluster, &["--view", "programs"])?;
    let busy = rows.first().context("no program")?;
    assert!(number(busy, "runs_per_second") >= 1.0 && number(busy, "nanoseconds_per_run") > 0.0, "{busy}");

    let table = cluster.proxy(1)?.command(&["top", "--once", "-d", "10ms"])?;
    let text = String::from_utf8(table.stdout)?;
    assert!(text.starts_with("node1: rates of 0.") && text.contains("\nSERVICE "), "{text}");
    Ok(())
}
