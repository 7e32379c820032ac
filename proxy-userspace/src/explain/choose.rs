//! The backend of a packet: by its slot, its flow entry, its client's affinity.

use std::collections::BTreeMap;

use proxy_common::Address;
use proxy_common::affinity::{AFFINITY_CLIENT, Affinity, AffinityKey};
use proxy_common::backend::Backend;
use proxy_common::frontend::{
    FRONTEND_AFFINITY, FRONTEND_DSR, FRONTEND_KIND_CLUSTER_IP, FRONTEND_KIND_NODE_PORT, FRONTEND_LOCAL,
    FRONTEND_WAS_CLUSTER, Frontend,
};
use proxy_common::hash::{client_hash, flow_hash, mix};
use proxy_common::rules::Role;
use proxy_common::selection::{
    BackendRef, HintKey, SERVICE_ELSEWHERE, SERVICE_MAGLEV, SERVICE_VACANT, ServiceEntry, Slot,
};
use proxy_common::verdict::Reason;
use proxy_common::way::PEER_SELF;

use super::access::not_ours;
use super::flows::Found;
use super::packet::Packet;
use super::step::{End, Verdict};
use super::text::{age, at, endpoint, some_of};
use super::walker::{Part, Walker};
use crate::dataplane::ebpf::read::Tables;

/// Slots of a slice that are counted for the probabilities of its backends.
const COUNTED: u32 = 1 << 16;
/// Candidates that are named.
const NAMED: usize = 8;

/// The backend of a packet, and what this node knows of the connection.
pub struct Choice<A> {
    pub backend: Backend<A>,
    pub reference: BackendRef,
    pub connection: Connection<A>,
}

/// This node's knowledge of a connection.
pub enum Connection<A> {
    /// It has this entry.
    Known(Found<A>),
    /// Its slot tells its backend: it needs no entry.
    BySlot,
    /// This is the first packet that this node sees of it.
    New,
}

impl<A: Address, T: Tables<A>> Walker<'_, A, T> {
    /// Chooses the backend of a packet that came in over an uplink.
    pub fn choose(&mut self, packet: &Packet<A>, frontend: &Frontend) -> Part<Choice<A>> {
        let needs_entry = !frontend.needs_no_flow_entry();
        let is_node_port = frontend.kind() == FRONTEND_KIND_NODE_PORT;
        let mut slot = Slot::default();
        if !needs_entry {
            let may_be_nodes = is_node_port || u16::from_be(packet.key.destination_port) >= 1024;
            if may_be_nodes && self.is_nodes_own(packet, is_node_port) {
                return Err(nodes_own());
            }
            slot = self.select_slot(frontend, packet);
            let reference = slot.current();
            let by_slot = self.backend(reference).filter(|backend| !backend.is_local());
            if !slot.is_unsettled()
                && !self.is_newer()
                && let Some(backend) = by_slot
            {
                self.note(
                    "flow",
                    "not asked: the slot is settled, and a director with DSR needs no entry",
                    "",
                );
                self.note_list(frontend);
                self.note_backend(frontend, packet, &backend, "its slot");
                return Ok(Choice { backend, reference, connection: Connection::BySlot });
            }
        }
        let found = self.lookup(packet, frontend);
        self.note_flow(found.as_ref());
        if let Some(found) = found
            && let Some(backend) = self.backend(found.backend())
            && packet.role().keeps(backend.flags)
        {
            self.note("backend", format!("{}: the connection's own", endpoint(&backend)), "BACKENDS*");
            let reference = found.backend();
            return Ok(Choice { backend, reference, connection: Connection::Known(found) });
        }
        if self.is_nodes_own(packet, is_node_port) {
            return Err(nodes_own());
        }
        if needs_entry {
            slot = self.select_slot(frontend, packet);
        }
        let is_midstream = packet.role() == Role::Midstream;
        let former = self.former_owner(packet, frontend).filter(|_| is_midstream);
        let (chosen, by) = match former {
            Some(owner) => (owner, ""),
            None => self.by_affinity(packet, frontend, slot),
        };
        self.note_list(frontend);
        let reference = self.second_chance(frontend, packet, slot, chosen);
        let backend = self.backend(reference).ok_or_else(|| self.no_backend(frontend))?;
        if reference != chosen {
            self.note_backend(frontend, packet, &backend, "a second chance");
        } else if former.is_some() {
            self.note_former(&backend);
        } else {
            self.note_backend(frontend, packet, &backend, by);
        }
        Ok(Choice { backend, reference, connection: Connection::New })
    }

    /// Chooses the backend of a pod's packet that has no flow entry.
    pub fn choose_anew(&mut self, packet: &Packet<A>, frontend: &Frontend) -> Part<(Backend<A>, BackendRef)> {
        if self.is_nodes_own(packet, frontend.kind() == FRONTEND_KIND_NODE_PORT) {
            return Err(nodes_own());
        }
        let slot = self.select_slot(frontend, packet);
        let (reference, by) = self.by_affinity(packet, frontend, slot);
        self.note_list(frontend);
        let backend = self.backend(reference).ok_or_else(|| self.no_backend(frontend))?;
        self.note_backend(frontend, packet, &backend, by);
        Ok((backend, reference))
    }

    /// Whether a backend's pod can take a packet unchanged.
    pub fn pod_takes(&self, backend: &Backend<A>, packet: &Packet<A>) -> bool {
        backend.is_pod()
            && backend.port == packet.key.destination_port
            && self.peer(&packet.key.destination) & PEER_SELF == 0
    }

    /// Returns the slice of a frontend's list, unless it is empty.
    pub fn slice(&self, frontend: &Frontend) -> Option<ServiceEntry> {
        self.tables.service(frontend.service).filter(|entry| entry.length() != 0)
    }

    fn select_slot(&self, frontend: &Frontend, packet: &Packet<A>) -> Slot {
        let Some(entry) = self.slice(frontend) else { return Slot::default() };
        self.tables.slot(entry.slot(hash(frontend, packet)))
    }

    /// Returns the owner that a connection without a flow entry had in the table before this one.
    fn former_owner(&self, packet: &Packet<A>, frontend: &Frontend) -> Option<BackendRef> {
        let was_cluster = frontend.flags & (FRONTEND_WAS_CLUSTER | FRONTEND_AFFINITY) == FRONTEND_WAS_CLUSTER;
        let list = if was_cluster { frontend.cluster_service } else { frontend.service };
        let entry = self.tables.service(list)?;
        let former = match entry.former() {
            Some(word) => ServiceEntry(self.tables.slot(word).0),
            None if was_cluster && entry.length() != 0 => entry,
            None => return None,
        };
        let slot = self.tables.slot(former.slot(flow_hash(&packet.key)));
        let owner = slot.owner(packet.role(), |owner| self.backend(owner).map(|backend| backend.flags));
        self.backend(owner).map(|_| owner)
    }

    /// Returns the backend of a client's affinity, else the slot's owner, and a word for which of both.
    fn by_affinity(
        &mut self,
        packet: &Packet<A>,
        frontend: &Frontend,
        slot: Slot,
    ) -> (BackendRef, &'static str) {
        let role = packet.role();
        let owner = slot.owner(role, |reference| self.backend(reference).map(|backend| backend.flags));
        if frontend.flags & FRONTEND_AFFINITY == 0 {
            self.note("affinity", "none asked for", "");
            return (owner, if owner == slot.current() { "its slot" } else { "its slot's settled owner" });
        }
        let client = (packet.key.source, AFFINITY_CLIENT);
        self.recall(frontend, client, owner, role)
    }

    /// Returns the backend of a client of this kind, else the owner of its slot, and a word for which of both.
    pub fn recall(
        &mut self,
        frontend: &Frontend,
        (client, kind): (A, u32),
        owner: BackendRef,
        role: Role,
    ) -> (BackendRef, &'static str) {
        let service = frontend.port_service();
        let key = AffinityKey { client, service, kind };
        self.keys.affinities.push(key);
        let kept = self.tables.affinity(&key).unwrap_or_default();
        let is_known = kept.service == service && kept.backend != 0;
        let holds = kept.holds(service, self.now, frontend.affinity_seconds);
        let goes_on = is_known && (holds || role == Role::Midstream);
        let had = if goes_on { BackendRef(kept.backend) } else { BackendRef::NONE };
        self.note_affinity(frontend, &kept, is_known, holds);
        if self.keeps(frontend, had) {
            (had, "the client's affinity")
        } else if is_known && !holds && role != Role::Midstream && frontend.flags & FRONTEND_DSR == 0 {
            (self.anew(frontend, &client, kept.last_used), "a new slot after an affinity that has ended")
        } else {
            (owner, "the slot of the client's address")
        }
    }

    fn note_affinity(&mut self, frontend: &Frontend, kept: &Affinity, is_known: bool, holds: bool) {
        let backend = self.backend(BackendRef(kept.backend)).map(|backend| endpoint(&backend));
        let backend = backend.unwrap_or_else(|| "a backend that is gone".to_owned());
        let used = age(self.now.wrapping_sub(kept.last_used).into());
        let text = match (is_known, holds) {
            (false, _) => "ClientIP: this client has none yet".to_owned(),
            (true, true) => format!("ClientIP: {backend}, last used {used} ago"),
            (true, false) => {
                let limit = age(frontend.affinity_seconds.into());
                format!("ClientIP: {backend} has ended, last used {used} ago (time-out {limit})")
            }
        };
        self.note("affinity", text, "AFFINITY*, HINTS");
    }

    fn anew(&self, frontend: &Frontend, client: &A, last_used: u32) -> BackendRef {
        let Some(entry) = self.slice(frontend) else { return BackendRef::NONE };
        let hash = mix(u64::from(client_hash(client)) << 32 | u64::from(last_used)) as u32;
        self.tables.slot(entry.slot(hash)).current()
    }

    /// Whether a client may keep its backend.
    fn keeps(&self, frontend: &Frontend, kept: BackendRef) -> bool {
        let member = self.tables.hint(&HintKey::member(frontend.service, kept));
        if kept.is_none() || member != Some(kept.0) {
            return false;
        }
        let is_reached = |backend: Backend<A>| {
            backend.is_local() || backend.hint != 0 || frontend.flags & FRONTEND_DSR == 0
        };
        self.backend(kept).is_some_and(is_reached)
    }

    fn second_chance(
        &self,
        frontend: &Frontend,
        packet: &Packet<A>,
        slot: Slot,
        chosen: BackendRef,
    ) -> BackendRef {
        let has_entry = |backend: Backend<A>| backend.is_local() && !self.pod_takes(&backend, packet);
        if frontend.may_lack_flow_entry() && self.backend(chosen).is_some_and(has_entry) {
            slot.second_chance(chosen, packet.role(), |other| self.backend(other).is_some())
        } else {
            chosen
        }
    }

    /// The end of a walk without a backend.
    pub fn no_backend(&self, frontend: &Frontend) -> End {
        let Some(entry) = self.tables.service(frontend.service) else {
            return Verdict::new(Reason::NoBackend, "the map SERVICES lacks the list").into();
        };
        let label = self.label(frontend.service);
        if entry.length() != 0 && entry.flags() & SERVICE_VACANT == 0 {
            Verdict::new(Reason::NoBackend, "the slot names a backend that is not in the maps (yet)").into()
        } else if entry.flags() & SERVICE_ELSEWHERE != 0 {
            let policy = policy(frontend);
            let why = format!("{policy} is Local, and all endpoints of {label} are on other nodes");
            Verdict::new(Reason::NoLocalEndpoint, why).into()
        } else {
            Verdict::new(Reason::NoEndpoint, format!("{label} has no usable endpoint")).into()
        }
    }

    /// Adds the step of a frontend's list.
    pub fn note_list(&mut self, frontend: &Frontend) {
        let entry = self.tables.service(frontend.service).unwrap_or_default();
        let list = self.tables.list(frontend.service).unwrap_or_else(|| "list".to_owned());
        let owners = self.owners(entry);
        let mut text = match (owners.len(), entry.flags() & SERVICE_ELSEWHERE != 0) {
            (0, true) => format!("{list}: no endpoint here, some on other nodes"),
            (0, false) => format!("{list}: no endpoint"),
            (1, _) => format!("{list}: 1 endpoint"),
            (count, _) => format!("{list}: {count} endpoints"),
        };
        if entry.length() != 0 {
            let algorithm = if entry.flags() & SERVICE_MAGLEV != 0 { "maglev" } else { "random" };
            let slots = if entry.length() == 1 { "slot" } else { "slots" };
            text = format!("{text}, {algorithm}, {} {slots}", entry.length());
        }
        if frontend.flags & FRONTEND_LOCAL != 0 {
            text = format!("{text}; {} Local", policy(frontend));
        }
        self.note("list", text, "SERVICES, SELECTION");
    }

    fn note_former(&mut self, backend: &Backend<A>) {
        let text = format!("{}: its slot of the table that the list had before", endpoint(backend));
        self.note("backend", text, "SELECTION, BACKENDS*");
    }

    fn note_backend(&mut self, frontend: &Frontend, packet: &Packet<A>, backend: &Backend<A>, by: &str) {
        let entry = self.tables.service(frontend.service).unwrap_or_default();
        let slot = entry.slot(hash(frontend, packet)).wrapping_sub(entry.offset());
        let of = if entry.flags() & SERVICE_MAGLEV != 0 || frontend.flags & FRONTEND_AFFINITY != 0 {
            format!("slot {slot}")
        } else {
            format!("slot {slot} by the client's port")
        };
        let text = format!("{}: {by} ({of})", endpoint(backend));
        self.note("backend", text, "SELECTION, BACKENDS*");
        self.note_candidates(&self.owners(entry));
    }

    /// Adds the step of the candidates, if there are several.
    pub fn note_candidates(&mut self, owners: &BTreeMap<BackendRef, u32>) {
        if owners.len() > 1 {
            let total = f64::from(owners.values().copied().fold(0, u32::saturating_add));
            let share = |(owner, slots): (&BackendRef, &u32)| {
                let backend = self.backend(*owner).map_or_else(
                    || "a backend that is gone".to_owned(),
                    |backend| at(backend.address, backend.port),
                );
                format!("{backend} p={:.2}", f64::from(*slots) / total)
            };
            let candidates: Vec<String> = owners.iter().map(share).collect();
            self.note("candidates", some_of(&candidates, NAMED), "SELECTION, BACKENDS*");
        }
    }

    /// Returns the owners of a slice's slots, and how many each has.
    pub fn owners(&self, entry: ServiceEntry) -> BTreeMap<BackendRef, u32> {
        let mut owners = BTreeMap::new();
        for index in 0..entry.length().min(COUNTED) {
            let owner = self.tables.slot(entry.offset().wrapping_add(index)).current();
            if !owner.is_none() {
                *owners.entry(owner).or_default() += 1;
            }
        }
        owners
    }
}

fn hash<A: Address>(frontend: &Frontend, packet: &Packet<A>) -> u32 {
    if frontend.flags & FRONTEND_AFFINITY != 0 {
        client_hash(&packet.key.source)
    } else {
        flow_hash(&packet.key)
    }
}

/// Returns the name of the policy that a frontend's list follows.
const fn policy(frontend: &Frontend) -> &'static str {
    if frontend.kind() == FRONTEND_KIND_CLUSTER_IP {
        "internalTrafficPolicy"
    } else {
        "externalTrafficPolicy"
    }
}

fn nodes_own() -> End {
    not_ours("the packet belongs to a connection of the node's own")
}
