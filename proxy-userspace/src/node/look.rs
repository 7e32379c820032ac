//! One look at this node's network, without following it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::pin;

use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use rtnetlink::packet_route::rule::{RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion};

use super::{NodeError, NodeState, query};

/// The network of this namespace at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Devices, addresses, routes and neighbours.
    pub state: NodeState,
    /// More of each device, by interface index.
    pub links: BTreeMap<u32, LinkState>,
    /// The policy rules that ask for a mark.
    pub rules: Vec<MarkRule>,
}

/// More of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Whether frames can come and go.
    pub has_carrier: bool,
    /// The kernel's id of the XDP program, if there is one.
    pub xdp: Option<u32>,
}

/// A policy rule that asks for a mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MarkRule {
    /// Its priority.
    pub priority: u32,
    /// The mark.
    pub mark: u32,
    /// The bits of the mark that it asks for.
    pub mask: u32,
}

/// Looks at the network, and at the routes to these addresses.
pub async fn look(targets: &BTreeSet<IpAddr>) -> Result<Look, NodeError> {
    let (connection, handle, _) = rtnetlink::new_connection().map_err(NodeError::Open)?;
    let requester = tokio::spawn(connection);
    let look = read(&handle, targets).await;
    requester.abort();
    look
}

async fn read(handle: &Handle, targets: &BTreeSet<IpAddr>) -> Result<Look, NodeError> {
    let mut state = query::dump(handle).await?;
    state.routes = query::routes(handle, targets.iter().copied()).await?;
    let mut look = Look { state, ..Look::default() };
    let mut links = pin!(handle.link().get().execute());
    while let Some(message) = links.try_next().await? {
        look.links.insert(message.header.index, link(&message));
    }
    for version in [IpVersion::V4, IpVersion::V6] {
        let mut rules = pin!(handle.rule().get(version).execute());
        while let Some(message) = rules.try_next().await? {
            look.rules.extend(rule(&message));
        }
    }
    look.rules.sort_unstable();
    look.rules.dedup();
    Ok(look)
}

fn link(message: &LinkMessage) -> LinkState {
    let mut state = LinkState::default();
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::Carrier(carrier) => state.has_carrier = *carrier != 0,
            LinkAttribute::Xdp(told) => {
                state.xdp = told.iter().find_map(|one| match one {
                    LinkXdp::ProgId(id) => Some(*id),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    state
}

/// Returns a rule that asks for a mark. The kernel's default for a mask is all bits.
fn rule(message: &RuleMessage) -> Option<MarkRule> {
    let mut rule = MarkRule { mask: u32::MAX, ..MarkRule::default() };
    let mut has_mark = false;
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::FwMark(mark) => (rule.mark, has_mark) = (*mark, true),
            RuleAttribute::FwMask(mask) => rule.mask = *mask,
            _ => {}
        }
    }
    (has_mark && rule.mask != 0).then_some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn loopback_is_seen_with_its_carrier() {
        let look = look(&BTreeSet::new()).await.unwrap();
        assert_eq!(look.state.devices[&1].name, "lo");
        assert_eq!(look.links[&1].xdp, None);
    }

    #[test]
    fn a_rule_that_asks_for_a_mark_is_kept() {
        let message = |attributes| {
            let mut message = RuleMessage::default();
            message.attributes = attributes;
            message
        };
        let marked = [RuleAttribute::Priority(9), RuleAttribute::FwMark(0x200), RuleAttribute::FwMask(0xf00)];
        assert_eq!(rule(&message(marked.to_vec())), Some(MarkRule { priority: 9, mark: 0x200, mask: 0xf00 }));
        let bare = rule(&message(vec![RuleAttribute::FwMark(1)])).unwrap();
        assert_eq!(bare.mask, u32::MAX);
        assert_eq!(rule(&message(vec![RuleAttribute::Priority(9)])), None);
    }
}
