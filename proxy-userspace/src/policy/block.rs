//! The peers of an `ipBlock`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::IPBlock;

use super::problem::Notes;
use crate::model::parse_range;

/// A prefix without the prefixes that are taken out of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Block {
    /// The prefix, without host bits.
    pub cidr: IpNet,
    /// Prefixes inside `cidr`, each longer than it.
    pub except: BTreeSet<IpNet>,
}

impl Block {
    /// Returns whether an address is inside.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.covers(address.into())
    }

    /// Returns whether a whole prefix is inside.
    ///
    /// A prefix that contains an exception is inside as far as no longer prefix says otherwise. A longest-prefix
    /// look-up asks in this way.
    pub fn covers(&self, prefix: IpNet) -> bool {
        self.cidr.contains(&prefix) && !self.except.iter().any(|except| except.contains(&prefix))
    }
}

/// Parses an `ipBlock`. With a fault in any part it is `None`: it matches nothing.
pub(super) fn read_block(block: &IPBlock, field: &str, notes: &mut Notes) -> Option<Block> {
    let cidr = read_prefix(&block.cidr, format!("{field}.cidr"), notes);
    let mut except = BTreeSet::new();
    let mut is_valid = true;
    for (index, text) in block.except.iter().flatten().enumerate() {
        let field = format!("{field}.except[{index}]");
        let Some(prefix) = read_prefix(text, field.clone(), notes) else {
            is_valid = false;
            continue;
        };
        // The API server asks for a strict subset.
        if cidr.is_some_and(|cidr| !cidr.contains(&prefix) || cidr == prefix) {
            notes.warn(
                field,
                format!("{text:?} is not a part of {}; the ipBlock matches nothing", block.cidr),
            );
            is_valid = false;
        }
        except.insert(prefix);
    }
    cidr.filter(|_| is_valid).map(|cidr| Block { cidr, except })
}

fn read_prefix(text: &str, field: String, notes: &mut Notes) -> Option<IpNet> {
    let prefix = parse_range(text).map(|prefix| prefix.trunc());
    if prefix.is_none() {
        let takes = "takes one such as 192.0.2.0/24 or 2001:db8::/64";
        notes.warn(field, format!("{text:?} is not a CIDR; {takes}; the ipBlock matches nothing"));
    }
    prefix
}
