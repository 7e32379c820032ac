//! A map of the firewall without room.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Map, MapData, MapError};
use millrace_lab::cluster::TARGET_PORT;
use millrace_lab::topology::Family;
use millrace_lab::traffic::LongConnections;
use serde_json::{Value, json};

use super::bench::{Guarded, judge};
use crate::faces::get_until;

type Peers = LpmTrie<MapData, [u8; 4], u32>;

fn allow(app: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": "a"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]})
}

fn allow_block(cidr: &str) -> Value {
    json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": [{"ipBlock": {"cidr": cidr}}]}]})
}

/// Returns the path of a file below a directory.
fn find(directory: &Path, name: &str) -> Option<PathBuf> {
    let mut paths = fs::read_dir(directory).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    paths.find_map(|path| if path.ends_with(name) { Some(path) } else { find(&path, name) })
}

/// Puts peers into a map until it has no room, behind the agent's back. Returns them.
fn fill(peers: &mut Peers) -> Result<Vec<Key<[u8; 4]>>> {
    let first = u32::from(Ipv4Addr::new(100, 64, 0, 0));
    let mut all = Vec::new();
    for number in 0.. {
        let key = Key::new(32, Ipv4Addr::from(first + number).octets());
        match peers.insert(&key, 0, 0) {
            Ok(()) => all.push(key),
            Err(MapError::SyscallError(_)) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(all)
}

#[test]
fn a_full_map_opens_nothing_and_cuts_nothing_and_is_told_until_there_is_room() -> Result<()> {
    let guarded = Guarded::start(1, 3, &[])?;
    guarded.put_policies(&[("p", allow("b"))])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", false)?;
    guarded.wait_until_pod("pod-1b", "pod-1a", true)?;
    let target = SocketAddr::new(guarded.addresses("pod-1a")?.of(Family::V4), TARGET_PORT);
    let connections = LongConnections::open(guarded.pod("pod-1b")?, target, 3, 3)?;
    let proxy = guarded.cluster.proxy(1)?;
    let path = find(proxy.bpffs(), "POLICY_PEERS4").context("POLICY_PEERS4 is not pinned")?;
    let mut peers = Peers::try_from(Map::LpmTrie(MapData::from_pin(path)?))?;
    let foreign = fill(&mut peers)?;
    ensure!(foreign.len() > 1_000_000, "{} peers fill the map", foreign.len());

    let with_block = [("p", allow("b")), ("q", allow_block("198.18.0.0/15"))];
    guarded.put_policies(&with_block)?;
    let node = guarded.cluster.bed().node(1)?.namespace();
    let ready = |text: &str| get_until(node, ([127, 0, 0, 1], 10249).into(), "/readyz?verbose", text);
    let full = "POLICY_PEERS4 is full: it has 1048576 entries";
    ready(&format!("[-]network-policies failed: {full}"))?;
    ensure!(proxy.log().contains(full), "{}", proxy.log());
    let as_before = || {
        let mut questions = guarded.ask_pod("pod-1c", "pod-1a", false)?;
        questions.extend(guarded.ask_pod("pod-1b", "pod-1a", true)?);
        judge(questions)
    };
    as_before()?;
    ensure!(connections.stop()? == 6, "a connection was cut");

    for key in &foreign {
        peers.remove(key)?;
    }
    guarded.put_policies(&[("p", allow("c")), ("q", allow_block("198.18.0.0/15"))])?;
    guarded.wait_until_pod("pod-1c", "pod-1a", true)?;
    guarded.wait_until_pod("pod-1b", "pod-1a", false)?;
    ready("[+]network-policies ok").map(drop)
}
