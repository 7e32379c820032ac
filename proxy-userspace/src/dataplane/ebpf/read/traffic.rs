//! The traffic of clients, by service port.

use std::collections::BTreeMap;

use super::{PinnedMaps, ReadError, total};
use millrace_views::TrafficView;

impl PinnedMaps {
    /// Returns the packets and bytes of each service port and family, sorted. They are the sum over
    /// its lists.
    pub fn traffic(&self) -> Result<Vec<TrafficView>, ReadError> {
        let mut ports: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (id, text) in self.names()? {
            let counter = total(&self.service_stats, id)?;
            let sum = ports.entry((text.namespace, text.name, text.port, text.family)).or_default();
            *sum = (sum.0.wrapping_add(counter.packets), sum.1.wrapping_add(counter.bytes));
        }
        let view = |((namespace, name, port, family), (packets, bytes))| TrafficView {
            namespace,
            name,
            port,
            family,
            packets,
            bytes,
        };
        Ok(ports.into_iter().map(view).collect())
    }
}
