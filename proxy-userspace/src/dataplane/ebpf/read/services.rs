//! Services and backends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;
use proxy_common::Address;
use proxy_common::addr::unmapped;
use proxy_common::backend::{
    BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_POD, BACKEND_READY, BACKEND_SERVING, Backend,
};
use proxy_common::frontend::{
    FRONTEND_DSR, FRONTEND_INSIDE_ONLY, FRONTEND_KIND_CLUSTER_IP, FRONTEND_KIND_EXTERNAL_IP,
    FRONTEND_KIND_LOAD_BALANCER, FRONTEND_KIND_NODE_PORT, FRONTEND_SOURCE_RANGES, Frontend,
    SCOPE_ENCAPSULATED, SCOPE_INTERNAL,
};
use proxy_common::selection::{BackendRef, SERVICE_ELSEWHERE, SERVICE_MAGLEV, ServiceEntry, Slot};
use proxy_common::way::WAY_VALID;

use super::{PinnedMaps, ReadError, total};
use crate::dataplane::ebpf::convert::{frontend_at, socket};
use crate::dataplane::ebpf::error::OpenError;
use crate::dataplane::ebpf::maps::FamilyMaps;
use crate::dataplane::ebpf::plan::FrontendAt;
use millrace_views::{BackendView, ConnectionsView, FrontendView, HandshakesView, ServiceView};

/// The parts of a text in NAMES.
pub(super) struct ServiceText {
    pub namespace: String,
    pub name: String,
    pub port: String,
    pub family: String,
    pub list: String,
}

/// Frontends by service id, and the ids for in-cluster clients.
#[derive(Default)]
struct Leading {
    ranges: BTreeMap<u32, Vec<IpNet>>,
    frontends: BTreeMap<u32, BTreeSet<FrontendView>>,
    cluster: BTreeSet<u32>,
}

impl PinnedMaps {
    /// Returns the services, sorted by name, without the lists that no frontend leads to. Their figures are
    /// zero until [`Figures`](super::Figures) fills them in.
    pub fn services(&self) -> Result<Vec<ServiceView>, ReadError> {
        let mut leading = Leading { ranges: self.source_ranges()?, ..Leading::default() };
        self.maps.of4.frontends.for_each(|key, value| leading.add(&frontend_at(&key), &value))?;
        self.maps.of6.frontends.for_each(|key, value| leading.add(&frontend_at(&key), &value))?;
        let mut services = Vec::new();
        for (id, text) in self.names()? {
            let frontends: Vec<_> = leading.frontends.remove(&id).into_iter().flatten().collect();
            if frontends.is_empty() && !leading.cluster.contains(&id) {
                continue;
            }
            services.push(self.service(id, text, frontends)?);
        }
        let key = |view: &ServiceView| {
            [&view.namespace, &view.name, &view.port, &view.family, &view.list].map(String::clone)
        };
        services.sort_by_cached_key(key);
        Ok(services)
    }

    fn service(
        &self,
        id: u32,
        text: ServiceText,
        frontends: Vec<FrontendView>,
    ) -> Result<ServiceView, ReadError> {
        let entry = ServiceEntry(self.maps.services.load(id));
        let owners: BTreeSet<BackendRef> = self.owners(entry).collect();
        let owners = owners.into_iter();
        let backends: BTreeMap<SocketAddr, bool> = if text.family == "IPv6" {
            owners.filter_map(|owner| owner_at(&self.maps.of6, owner)).collect()
        } else {
            owners.filter_map(|owner| owner_at(&self.maps.of4, owner)).collect()
        };
        let traffic = total(&self.service_stats, id)?;
        Ok(ServiceView {
            namespace: text.namespace,
            name: text.name,
            port: text.port,
            family: text.family,
            list: text.list,
            id,
            algorithm: if entry.flags() & SERVICE_MAGLEV == 0 { "random" } else { "maglev" }.into(),
            slots: entry.length(),
            elsewhere: entry.flags() & SERVICE_ELSEWHERE != 0,
            frontends,
            here: backends.values().filter(|is_local| **is_local).count(),
            backends: backends.into_keys().collect(),
            packets: traffic.packets,
            bytes: traffic.bytes,
            dropped: BTreeMap::new(),
            connections: ConnectionsView::default(),
            handshakes: HandshakesView::default(),
        })
    }

    /// Returns the names of the Services, as `namespace/name`.
    pub fn service_names(&self) -> Result<BTreeSet<String>, ReadError> {
        Ok(self.names()?.into_values().map(|text| format!("{}/{}", text.namespace, text.name)).collect())
    }

    /// Returns the endpoints, sorted by address, without their figures as well.
    pub fn backends(&self) -> Result<Vec<BackendView>, ReadError> {
        let mut services: BTreeMap<(bool, u32), BTreeSet<String>> = BTreeMap::new();
        for (id, text) in self.names()? {
            let entry = ServiceEntry(self.maps.services.load(id));
            let owners: BTreeSet<u32> = self.owners(entry).map(BackendRef::id).collect();
            for owner in owners {
                services.entry((text.family == "IPv6", owner)).or_default().insert(text.label());
            }
        }
        let mut views = Vec::new();
        self.family_backends(&self.maps.of4, &mut views, |id| services.get(&(false, id)))?;
        self.family_backends(&self.maps.of6, &mut views, |id| services.get(&(true, id)))?;
        views.sort_by_key(|view| (view.address, view.id));
        Ok(views)
    }

    fn family_backends<'a, A: Address>(
        &self,
        maps: &FamilyMaps<A>,
        views: &mut Vec<BackendView>,
        services: impl Fn(u32) -> Option<&'a BTreeSet<String>>,
    ) -> Result<(), OpenError> {
        for (id, backend) in maps.backends.all()? {
            if id != 0 && backend.address != A::default() {
                let services = services(id).into_iter().flatten().cloned().collect();
                views.push(self.backend(id, &backend, services));
            }
        }
        Ok(())
    }

    fn backend<A: Address>(&self, id: u32, backend: &Backend<A>, services: Vec<String>) -> BackendView {
        let has = |flag: u8| backend.flags & flag != 0;
        let way = self.maps.ways.get(backend.way).filter(|way| way.flags & WAY_VALID != 0);
        BackendView {
            address: socket(backend.address, backend.port),
            id,
            generation: backend.generation,
            exists: has(BACKEND_EXISTS),
            local: has(BACKEND_LOCAL),
            pod: has(BACKEND_POD),
            ready: has(BACKEND_READY),
            serving: has(BACKEND_SERVING),
            node: way.map(|way| unmapped(way.target)),
            hint: backend.hint,
            services,
            connections: ConnectionsView::default(),
        }
    }

    /// Returns the prefixes in SOURCE_RANGES by service id or `CLUSTER`, sorted.
    pub(super) fn source_ranges(&self) -> Result<BTreeMap<u32, Vec<IpNet>>, OpenError> {
        let mut ranges = [self.maps.of4.source_ranges.all()?, self.maps.of6.source_ranges.all()?].concat();
        ranges.sort_unstable();
        let mut by_service: BTreeMap<u32, Vec<IpNet>> = BTreeMap::new();
        for range in ranges {
            by_service.entry(range.service).or_default().push(range.net);
        }
        Ok(by_service)
    }

    /// Returns the names, by service id.
    pub(super) fn names(&self) -> Result<BTreeMap<u32, ServiceText>, ReadError> {
        let mut names = BTreeMap::new();
        self.maps.names.for_each(|id, name| {
            names.extend(name.text().and_then(ServiceText::parse).map(|text| (id, text)));
            true
        })?;
        Ok(names)
    }

    /// Returns the current owners of a slice's slots. A slot of an empty list has none.
    fn owners(&self, entry: ServiceEntry) -> impl Iterator<Item = BackendRef> {
        (entry.offset()..entry.offset().saturating_add(entry.length()))
            .map(|index| Slot(self.maps.selection.load(index)).current())
            .filter(|owner| !owner.is_none())
    }
}

impl Leading {
    fn add(&mut self, at: &FrontendAt, value: &Frontend) -> bool {
        // Clients do not use this scope: it is for encapsulated packets of other nodes' NodePorts.
        if at.scope == SCOPE_ENCAPSULATED {
            return true;
        }
        self.cluster.insert(value.cluster_service);
        let is_restricted = value.flags & FRONTEND_SOURCE_RANGES != 0;
        let ranges = self.ranges.get(&value.service).cloned().unwrap_or_default();
        self.frontends.entry(value.service).or_default().insert(FrontendView {
            address: at.address,
            protocol: protocol_name(at.protocol).into(),
            scope: if at.scope == SCOPE_INTERNAL { "internal" } else { "external" }.into(),
            kind: match value.kind() {
                FRONTEND_KIND_CLUSTER_IP => "ClusterIP",
                FRONTEND_KIND_NODE_PORT => "NodePort",
                FRONTEND_KIND_EXTERNAL_IP => "ExternalIP",
                FRONTEND_KIND_LOAD_BALANCER => "LoadBalancer",
                _ => "unknown",
            }
            .into(),
            forwarding: if value.flags & FRONTEND_DSR == 0 { "snat" } else { "dsr" }.into(),
            affinity_seconds: value.affinity_seconds,
            source_ranges: is_restricted.then_some(ranges),
            inside_only: value.flags & FRONTEND_INSIDE_ONLY != 0,
        });
        true
    }
}

impl ServiceText {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let (namespace, name) = parts.next()?.split_once('/')?;
        let port = parts.next()?;
        Some(Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            port: if port == "-" { String::new() } else { port.to_owned() },
            family: parts.next()?.to_owned(),
            list: parts.next()?.to_owned(),
        })
    }

    /// Returns `namespace/name:port`, as kube-proxy writes it.
    pub(super) fn label(&self) -> String {
        millrace_views::service_port_label(&self.namespace, &self.name, &self.port)
    }
}

/// Returns the name of a protocol of Services.
pub(super) const fn protocol_name(number: u8) -> &'static str {
    match number {
        6 => "TCP",
        17 => "UDP",
        132 => "SCTP",
        _ => "unknown",
    }
}

/// Returns the name of a protocol of Services, or another protocol's number.
#[must_use]
pub fn protocol_text(number: u8) -> String {
    match protocol_name(number) {
        "unknown" => number.to_string(),
        name => name.to_owned(),
    }
}

/// Returns the address of a backend and whether it is on this node, unless its id has another generation.
fn owner_at<A: Address>(maps: &FamilyMaps<A>, owner: BackendRef) -> Option<(SocketAddr, bool)> {
    let backend = maps.backends.get(owner.id()).filter(|backend| backend.generation == owner.generation())?;
    Some((socket(backend.address, backend.port), backend.flags & BACKEND_LOCAL != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_apart() {
        let text = ServiceText::parse("default/web http IPv4 Local").unwrap();
        assert_eq!((text.family.as_str(), text.list.as_str()), ("IPv4", "Local"));
        assert_eq!(text.label(), "default/web:http");
        assert_eq!(ServiceText::parse("kube-system/dns - IPv6 Cluster").unwrap().label(), "kube-system/dns");
        assert!(ServiceText::parse("#17").is_none());
    }
}
