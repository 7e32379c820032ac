//! The ports of this node at which the programs look for replies to translated connections (SNAT).
//!
//! These are the ports of `--snat-ports`. After a change of the setting they are also those of the former range,
//! which programs may still give to connections while this agent starts, and those that living connections have.

use std::ops::RangeInclusive;
use std::path::Path;

use proxy_common::Address;
use proxy_common::config::AGENT_SNAT_PORTS;
use proxy_common::flow::{FLOW_REPLY, Flow, FlowKey};
use proxy_common::{Addr4, Addr6};

use super::error::OpenError;
use super::layout::Layout;
use super::map;
use super::mapped::{Access, MappedArray};
use super::maps::Table;

/// Returns the smallest range with all these ports.
pub fn of(wanted: &RangeInclusive<u16>, layout: &Layout) -> Result<RangeInclusive<u16>, OpenError> {
    let agent = map::mapped(&layout.maps(), "AGENT", Access::Read).ok();
    let mut ports = Hull(wanted.clone());
    if let Some(former) = agent.and_then(|agent| recorded(&agent)) {
        ports.add(*former.start());
        ports.add(*former.end());
    }
    for directory in [layout.maps(), layout.leaving_maps()] {
        for name in ["FLOWS4", "FLOWS_NEW4"] {
            ports.add_used::<Addr4>(&directory, name)?;
        }
        for name in ["FLOWS6", "FLOWS_NEW6"] {
            ports.add_used::<Addr6>(&directory, name)?;
        }
    }
    Ok(ports.0)
}

/// Records the range that connections get their ports from, for the next agent.
pub fn record(agent: &MappedArray, ports: &RangeInclusive<u16>) {
    let word = u64::from(*ports.end()) << 16 | u64::from(*ports.start());
    // An AGENT with too little room is not adopted.
    let _ = agent.store(AGENT_SNAT_PORTS, word);
}

/// Returns the range that a former agent recorded.
fn recorded(agent: &MappedArray) -> Option<RangeInclusive<u16>> {
    let word = u32::try_from(agent.load(AGENT_SNAT_PORTS)).ok().filter(|word| *word != 0)?;
    let [first, last] = [word & 0xffff, word >> 16].map(|port| u16::try_from(port).unwrap_or(0));
    Some(first..=last)
}

/// The smallest range with all ports that were added.
#[derive(Debug, PartialEq, Eq)]
struct Hull(RangeInclusive<u16>);

impl Hull {
    fn add(&mut self, port: u16) {
        let (first, last) = (*self.0.start(), *self.0.end());
        self.0 = first.min(port)..=last.max(port);
    }

    /// Adds the ports of translated connections in a table, if it is there.
    fn add_used<A: Address>(&mut self, directory: &Path, name: &'static str) -> Result<(), OpenError> {
        if !directory.join(name).exists() {
            return Ok(());
        }
        Table::<FlowKey<A>, Flow<A>>::open(directory, name)?.for_each(|key, flow| {
            if flow.check != 0 && flow.flags & FLOW_REPLY != 0 {
                self.add(u16::from_be(key.destination_port));
            }
            true
        })
    }
}
