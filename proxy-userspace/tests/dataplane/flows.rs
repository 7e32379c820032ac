//! `millrace flows` on tables that have more entries than it shows.

use std::process::Command;

use anyhow::Result;
use aya::maps::{HashMap, Map, MapData};
use millrace::dataplane::Dataplane;
use nix::time::{ClockId, clock_gettime};
use proxy_common::Addr4;
use proxy_common::flow::{FLOW_ESTABLISHED, FLOW_REWRITE_DESTINATION, Flow, FlowKey};

use crate::support::{Scratch, all, desired, key, port};

/// Seconds without a packet, of the request's entry and of the reply's. The machine has been up for that time.
const IDLE: [(u32, u32); 3] = [(60, 60), (60, 0), (0, 0)];
/// Connections of each kind.
const EACH: u8 = 10;

/// Runs `millrace flows`; returns standard output and standard error.
fn flows(scratch: &Scratch, words: &str) -> (Vec<String>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.arg("flows").args(words.split(' ')).arg("--bpffs-path").arg(&scratch.path);
    let output = command.output().expect("millrace runs");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    assert!(output.status.success(), "{words}: {}", text(&output.stderr));
    (text(&output.stdout).lines().map(str::to_owned).collect(), text(&output.stderr))
}

/// Writes [`EACH`] connections of each kind, each of another client, with both entries.
fn connect(scratch: &Scratch) -> Result<()> {
    let table = MapData::from_pin(scratch.root().join("maps/FLOWS4"))?;
    let mut table: HashMap<_, FlowKey<Addr4>, Flow<Addr4>> = Map::from_map_data(table)?.try_into()?;
    let address = |address: [u8; 4]| Addr4([u32::from_ne_bytes(address)]);
    let now = u32::try_from(clock_gettime(ClockId::CLOCK_MONOTONIC)?.tv_sec())?;
    for (kind, (of_request, of_reply)) in (0..).zip(IDLE) {
        for number in 0..EACH {
            let key = FlowKey {
                source: address([198, 51, 100 + kind, number]),
                destination: address([192, 0, 2, 1]),
                source_port: 4711_u16.to_be(),
                destination_port: 80_u16.to_be(),
                protocol: 6,
                ..FlowKey::default()
            };
            let request = Flow {
                source: key.source,
                source_port: key.source_port,
                destination: address([10, 0, 1, 1]),
                destination_port: 8080_u16.to_be(),
                state: FLOW_ESTABLISHED,
                flags: FLOW_REWRITE_DESTINATION,
                last_seen: now.saturating_sub(of_request),
                ..Flow::default()
            };
            let twin = request.twin(&key);
            let mut reply = Flow { last_seen: now.saturating_sub(of_reply), ..request };
            reply.reverse(&key, &twin);
            table.insert(key, request, 0)?;
            table.insert(twin, reply, 0)?;
        }
    }
    Ok(())
}

#[test]
fn all_connections_are_counted_and_the_limit_is_of_those_that_fit() -> Result<()> {
    let scratch = Scratch::new();
    let state = desired([(key("web"), port(1, 1))]);
    let mut dataplane = scratch.open();
    assert!(dataplane.sync(&state, &all(&state)).is_complete());
    connect(&scratch)?;
    let count = |words: &str| flows(&scratch, words).0;
    let state = |connections: u8| {
        vec![format!(r#"{{"connections":{connections},"mode":"ebpf","value":"established"}}"#)]
    };
    assert_eq!(count("--limit 4 --count-by client -o name").len(), usize::from(3 * EACH));
    assert_eq!(count("--limit 4 --count-by state -o jsonl"), state(3 * EACH));
    assert_eq!(count("--limit 4 --count-by state --client 198.51.101.0/24 -o jsonl"), state(EACH));
    // The reply of the second kind's connections came just now.
    assert_eq!(count("--limit 4 --count-by state --older 60s -o jsonl"), state(EACH));
    assert_eq!(count("--limit 21 --older 60s -o name").len(), usize::from(EACH));
    assert_eq!(count("--limit 60 --older 60s --entries -o name").len(), usize::from(3 * EACH));
    let (rows, note) = flows(&scratch, "--limit 4 --older 60s --entries -o name");
    assert_eq!(
        (rows.len(), note.as_str()),
        (4, "millrace: 4 entries read, there may be more: see --limit\n")
    );
    assert_eq!(flows(&scratch, "--limit 4 --count-by client").1, "");
    Ok(())
}
