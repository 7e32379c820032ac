//! The traffic of clients, by service port.

use std::collections::BTreeMap;

use super::{PinnedMaps, ReadError, total};
use millrace_views::{ConnectionsView, TrafficView};

impl PinnedMaps {
    /// Returns the packets, bytes, drops and connections of each service port and family, sorted. They are the
    /// sum over its lists.
    pub fn traffic(&self) -> Result<Vec<TrafficView>, ReadError> {
        let dropped = self.drops()?;
        let mut ports: BTreeMap<_, TrafficView> = BTreeMap::new();
        for (id, text) in self.names()? {
            let counter = total(&self.service_stats, id)?;
            let counts = self.maps.figures.connections.get(id).unwrap_or_default();
            let key = (text.namespace, text.name, text.port, text.family);
            let sum = ports.entry(key).or_insert_with_key(|(namespace, name, port, family)| TrafficView {
                namespace: namespace.clone(),
                name: name.clone(),
                port: port.clone(),
                family: family.clone(),
                packets: 0,
                bytes: 0,
                dropped: BTreeMap::new(),
                connections: ConnectionsView::default(),
            });
            sum.packets = sum.packets.wrapping_add(counter.packets);
            sum.bytes = sum.bytes.wrapping_add(counter.bytes);
            sum.connections += ConnectionsView {
                opened: counts.opened,
                established: counts.established,
                refused: counts.refused,
                reset: counts.reset,
                ..ConnectionsView::default()
            };
            for (reason, packets) in dropped.get(&id).into_iter().flatten() {
                *sum.dropped.entry(reason.clone()).or_default() += packets;
            }
        }
        Ok(ports.into_values().collect())
    }
}
