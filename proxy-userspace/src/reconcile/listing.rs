//! The first listing, before the data plane is opened.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tokio::sync::watch;

use super::{Channels, Observer, report};
use crate::model::Model;
use crate::source::{Listing, SourceEvent};

/// Reads the first listing into `model`, then waits for this node's own addresses.
///
/// An object that is not in the listing counts as deleted. Returns `None` if the source, the
/// monitor or the caller ended first.
pub async fn list(
    model: &mut Model,
    channels: &mut Channels,
    observers: &mut [Box<dyn Observer>],
) -> Option<Listing> {
    let mut listed = None;
    while listed.is_none() {
        let batch = tokio::select! {
            biased;
            _ = channels.stop.changed() => return None,
            batch = channels.events.recv() => batch?,
        };
        for observer in observers.iter_mut() {
            observer.listing(&batch);
        }
        for event in batch {
            match event {
                SourceEvent::Change(change) => model.apply(change),
                SourceEvent::Problem(problem) => report(&problem, observers),
                SourceEvent::Listed(listing) => listed = Some(listing),
            }
        }
    }
    model.refresh();
    let listing = listed?;
    // NodePorts need this node's addresses. The data plane, opened next, asks which of them the
    // kernel serves.
    publish_targets(model, &channels.targets);
    // The channel stays unread, so that the task takes this topology as a new one.
    let mut topology = channels.topology.clone();
    let addresses = tokio::select! {
        biased;
        _ = channels.stop.changed() => return None,
        known = topology.wait_for(Option::is_some) => known.ok()?.as_ref()?.addresses.clone(),
    };
    model.set_node_addresses(addresses);
    model.refresh();
    Some(listing)
}

/// Tells the node monitor the addresses of the cluster's nodes.
pub(super) fn publish_targets(model: &Model, targets: &watch::Sender<Option<BTreeSet<IpAddr>>>) {
    let wanted = Some(model.desired().nodes.values().flatten().copied().collect());
    targets.send_if_modified(|now| {
        let is_new = *now != wanted;
        *now = wanted;
        is_new
    });
}
