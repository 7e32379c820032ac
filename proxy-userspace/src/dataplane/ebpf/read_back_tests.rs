//! Changes by other processes, found by reading the maps back.

use std::collections::BTreeMap;
use std::net::IpAddr;

use proxy_common::vip::FILTER_SERVED;
use proxy_common::way::PeerKey;

use super::convert::address_filter_place;
use super::scratch::Scratch;
use super::*;

#[test]
fn an_entry_removed_by_another_process_is_written_again_after_a_read_back() {
    let scratch = Scratch::new("drift");
    let mut dataplane = scratch.open();
    let address = IpAddr::from([172, 16, 0, 1]);
    let nodes = BTreeMap::from([("here".to_owned(), [address].into())]);
    let desired = Desired { nodes, node_name: "here".to_owned(), ..Desired::default() };
    assert_eq!(dataplane.sync(&desired, &Dirty::default()).writes, 1);
    let peer = PeerKey { address: proxy_common::addr::mapped(address) };
    dataplane.maps.peers.remove(&peer).unwrap();
    assert_eq!(dataplane.sync(&desired, &Dirty::default()).writes, 0, "the maps are not read back yet");
    dataplane.read_back().unwrap();
    assert_eq!(dataplane.sync(&desired, &Dirty::default()).writes, 1);
    assert!(dataplane.maps.peers.get(&peer).unwrap().is_some());
    dataplane.read_back().unwrap();
    assert_eq!(dataplane.sync(&desired, &Dirty::default()).writes, 0);
}

#[test]
fn bits_removed_by_another_process_come_back_with_a_read_back() {
    let scratch = Scratch::new("filter");
    let mut dataplane = scratch.open();
    let address = IpAddr::from([172, 16, 0, 1]);
    let nodes = BTreeMap::from([("here".to_owned(), [address].into())]);
    let desired = Desired { nodes, node_name: "here".to_owned(), ..Desired::default() };
    assert_eq!(dataplane.sync(&desired, &Dirty::default()).writes, 1);
    assert!(dataplane.maps.has_marked(address, FILTER_SERVED));
    let (word, _) = address_filter_place(address);
    assert!(dataplane.maps.address_filter.store(word, 0));
    dataplane.read_back().unwrap();
    assert!(dataplane.maps.has_marked(address, FILTER_SERVED));
}
