//! The writes of an agent: backends, ways, peers, heartbeat.

use std::net::{IpAddr, SocketAddr};

use proxy_common::addr::{mapped, unmapped};
use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::announced::AnnouncedKey;
use proxy_common::backend::{
    BACKEND_EXISTS, BACKEND_LOCAL, BACKEND_POD, BACKEND_READY, BACKEND_SERVING, Backend,
};
use proxy_common::device_mac::{device_mac_place, device_mac_word, mac_number};
use proxy_common::fragment::{FragmentKey, Held, HeldKey};
use proxy_common::hash::hint;
use proxy_common::hop::{Device, HOP_NEIGHBOUR, HOP_XDP, Hop};
use proxy_common::icmp::{KIND_REFUSAL, KINDS, SourcePrefix};
use proxy_common::node_flow::node_port_bit;
use proxy_common::selection::BackendRef;
use proxy_common::source_range::{CLUSTER, NEAR, SERVICE_BITS, SourceRange};
use proxy_common::vip::{FILTER_SERVED, FILTER_VIP, VipKey, filter_place};
use proxy_common::way::{Narrowing, PEER_SELF, PeerKey, WAY_IPV4, WAY_RESOLVED, WAY_VALID, WAY_XDP, Way};
use proxy_common::{Addr4, Addr6};

use super::Bed;
use super::load::monotonic_seconds;
use super::maps::FamilyMaps;
use super::run::DEVICE;
use crate::frame::{DEVICE_MAC, Mac};

/// MAC address of the next hop of [`resolved_way`].
pub const NEXT_HOP_MAC: Mac = [0x02, 0, 0, 0, 0, 0x03];

/// Returns a resolved way of MTU 1500 that XDP may use: out of [`DEVICE`], to [`NEXT_HOP_MAC`].
#[must_use]
pub fn resolved_way(source: IpAddr, target: IpAddr) -> Way {
    Way {
        target: mapped(target),
        source: mapped(source),
        device: DEVICE,
        mtu: 1500,
        flags: WAY_VALID | WAY_RESOLVED | WAY_XDP | if target.is_ipv4() { WAY_IPV4 } else { 0 },
        destination_mac: NEXT_HOP_MAC,
        source_mac: DEVICE_MAC,
    }
}

/// Returns a hop of MTU 1500 that XDP may use: out of [`DEVICE`], to [`NEXT_HOP_MAC`]. `source` is
/// the address of translated packets.
#[must_use]
pub fn known_hop(source: IpAddr) -> Hop<Addr6> {
    Hop {
        source: Addr6(mapped(source)),
        device: DEVICE,
        mtu: 1500,
        flags: HOP_NEIGHBOUR | HOP_XDP,
        destination_mac: NEXT_HOP_MAC,
        source_mac: DEVICE_MAC,
        ..Hop::default()
    }
}

impl Bed {
    /// Writes a word of AGENT.
    pub fn set_agent_word(&self, index: u32, value: u64) {
        self.set::<u64>("AGENT", index, value);
    }

    /// Writes a way and returns its id.
    pub fn way(&self, way: Way) -> u32 {
        let id = self.next_way.replace(self.next_way.get() + 1);
        self.set::<Way>("WAYS", id, way);
        id
    }

    /// Returns the entry of WAYS.
    #[must_use]
    pub fn current_way(&self, id: u32) -> Way {
        self.get::<Way>("WAYS", id)
    }

    /// Ends the time of a lowered MTU.
    pub fn forget_narrowness(&self, id: u32) {
        let narrowing = Narrowing(self.get::<u64>("NARROWED", id));
        assert!(!narrowing.is_none(), "way {id} has no lowered MTU");
        self.set::<u64>("NARROWED", id, Narrowing::new(1, narrowing.mtu(), narrowing.former()).0);
    }

    /// Writes the PEERS value of an address: a set of `PEER_*` bits, and above them the id of the
    /// way to it.
    pub fn peer(&self, address: IpAddr, bits: u32) {
        if bits & PEER_SELF != 0 {
            self.mark_address(address, FILTER_SERVED);
        }
        self.insert::<PeerKey, u32>("PEERS", PeerKey { address: mapped(address) }, bits);
    }

    /// Makes an address that of a Service, with `VIP_*` bits. Its bit in the filter stays set.
    pub fn vip(&self, address: IpAddr, bits: u32) {
        self.mark_address(address, FILTER_SERVED | FILTER_VIP);
        self.insert::<VipKey, u32>("VIPS", VipKey { address: mapped(address) }, bits);
    }

    /// Makes the programs look at packets for an address: `FILTER_*` bits, which stay set.
    pub(super) fn mark_address(&self, address: IpAddr, bits: u64) {
        let (word, shift) = match address {
            IpAddr::V4(address) => filter_place(&Addr4::from(address)),
            IpAddr::V6(address) => filter_place(&Addr6::from(address)),
        };
        self.mark("ADDRESS_FILTER", word, bits << shift);
    }

    /// Marks a port that a frontend on an address of this node may have. Its bit stays set.
    pub fn node_port(&self, port: u16) {
        let (word, mask) = node_port_bit(port.to_be());
        self.mark("NODE_PORTS", word, mask);
    }

    /// Gives a device its MAC address.
    pub fn device_mac(&self, device: u32, mac: Mac) {
        let place = device_mac_place(device);
        self.set::<u64>("DEVICE_MACS", place, device_mac_word(device, mac_number(mac)));
        self.marked.borrow_mut().push(("DEVICE_MACS", place));
    }

    /// Announces an address on a device, as the agent does.
    pub fn announce(&self, address: IpAddr, device: u32, mac: Mac) {
        let key = AnnouncedKey { address: mapped(address), device };
        self.insert::<AnnouncedKey, u64>("ANNOUNCED", key, mac_number(mac));
    }

    fn mark(&self, map: &'static str, word: u32, bits: u64) {
        self.set::<u64>(map, word, self.get::<u64>(map, word) | bits);
        self.marked.borrow_mut().push((map, word));
    }

    /// Removes an address from the Services' addresses.
    pub fn forget_vip(&self, address: IpAddr) {
        self.remove::<VipKey, u32>("VIPS", &VipKey { address: mapped(address) });
    }

    /// Lets sources in a prefix use a Service with source ranges.
    pub fn source_range(&self, service: u32, prefix: IpAddr, length: u32) {
        match prefix {
            IpAddr::V4(address) => {
                self.write_range(SourceRange { service, address: Addr4::from(address) }, length);
            }
            IpAddr::V6(address) => {
                self.write_range(SourceRange { service, address: Addr6::from(address) }, length);
            }
        }
    }

    /// Makes sources in a prefix count as inside the cluster, as `--cluster-cidr` does.
    pub fn cluster_source(&self, prefix: IpAddr, length: u32) {
        self.source_range(CLUSTER, prefix, length);
        self.source_range(NEAR, prefix, length);
    }

    /// Makes a source count as inside the cluster, as another node's address does.
    pub fn node_source(&self, address: IpAddr) {
        self.source_range(CLUSTER, address, if address.is_ipv4() { 32 } else { 128 });
    }

    /// Removes all source ranges, including those of the cluster.
    pub fn clear_source_ranges(&self) {
        self.clear_prefixes::<SourceRange<Addr4>, u32>("SOURCE_RANGES4");
        self.clear_prefixes::<SourceRange<Addr6>, u32>("SOURCE_RANGES6");
    }

    /// Changes every entry of AFFINITY4/6.
    pub fn rewrite_affinity(&self, change: impl Fn(&mut Affinity)) {
        self.rewrite_affinity_of::<Addr4>(&change);
        self.rewrite_affinity_of::<Addr6>(&change);
    }

    /// Returns the affinities of all clients.
    #[must_use]
    pub fn affinities(&self) -> Vec<Affinity> {
        let v4 =
            self.entries::<AffinityKey<Addr4>, Affinity>("AFFINITY4").into_iter().map(|(_, entry)| entry);
        let v6 =
            self.entries::<AffinityKey<Addr6>, Affinity>("AFFINITY6").into_iter().map(|(_, entry)| entry);
        v4.chain(v6).collect()
    }

    fn rewrite_affinity_of<A: FamilyMaps>(&self, change: impl Fn(&mut Affinity))
    where
        AffinityKey<A>: aya::Pod,
    {
        let map = A::map("AFFINITY");
        for (key, mut entry) in self.entries::<AffinityKey<A>, Affinity>(&map) {
            change(&mut entry);
            self.insert::<AffinityKey<A>, Affinity>(&map, key, entry);
        }
    }

    fn write_range<A: FamilyMaps>(&self, range: SourceRange<A>, length: u32)
    where
        SourceRange<A>: aya::Pod,
    {
        self.insert_prefix::<SourceRange<A>, u32>(&A::map("SOURCE_RANGES"), SERVICE_BITS + length, range, 1);
    }

    /// Writes a backend on this node, or returns the one written before.
    pub fn backend_local(&self, at: SocketAddr) -> BackendRef {
        self.backend(at, 0, BACKEND_LOCAL)
    }

    /// Writes a backend behind a way, or returns the one written before.
    pub fn backend_remote(&self, at: SocketAddr, way: u32) -> BackendRef {
        self.backend(at, way, 0)
    }

    /// Writes a backend whose pod decapsulates. It is on this node if the way is 0. An earlier
    /// backend of the same endpoint stays.
    pub fn backend_pod(&self, at: SocketAddr, way: u32) -> BackendRef {
        self.backends.borrow_mut().remove(&at);
        self.backend(at, way, BACKEND_POD | if way == 0 { BACKEND_LOCAL } else { 0 })
    }

    /// Retires a backend's id: no EndpointSlice has the endpoint any more.
    pub fn retire_backend(&self, at: SocketAddr) {
        let reference = self.backends.borrow_mut().remove(&at).expect("a backend that was written before");
        match at {
            SocketAddr::V4(_) => self.change_backend::<Addr4>(reference.id(), |backend| backend.flags = 0),
            SocketAddr::V6(_) => self.change_backend::<Addr6>(reference.id(), |backend| backend.flags = 0),
        }
    }

    /// Gives a backend's id to another endpoint on the same node: the id's generation changes.
    pub fn replace_backend(&self, at: SocketAddr, next: SocketAddr) -> BackendRef {
        let old = self.backends.borrow_mut().remove(&at).expect("a backend that was written before");
        let reference = BackendRef::new(old.id(), old.generation().wrapping_add(1));
        self.backends.borrow_mut().insert(next, reference);
        match next {
            SocketAddr::V4(next) => self.change_backend::<Addr4>(old.id(), |backend| {
                backend.address = (*next.ip()).into();
                backend.port = next.port().to_be();
                backend.generation = reference.generation();
            }),
            SocketAddr::V6(next) => self.change_backend::<Addr6>(old.id(), |backend| {
                backend.address = (*next.ip()).into();
                backend.port = next.port().to_be();
                backend.generation = reference.generation();
            }),
        }
        reference
    }

    /// Sets the flags of a backend, which still exists.
    pub fn set_backend_flags(&self, at: SocketAddr, flags: u8) {
        let id = self.backends.borrow()[&at].id();
        match at {
            SocketAddr::V4(_) => self.change_backend::<Addr4>(id, |backend| backend.flags = flags),
            SocketAddr::V6(_) => self.change_backend::<Addr6>(id, |backend| backend.flags = flags),
        }
    }

    /// Gives a backend another hint, or none with 0.
    pub fn set_backend_hint(&self, at: SocketAddr, hint: u32) {
        let id = self.backends.borrow()[&at].id();
        match at {
            SocketAddr::V4(_) => self.change_backend::<Addr4>(id, |backend| backend.hint = hint),
            SocketAddr::V6(_) => self.change_backend::<Addr6>(id, |backend| backend.hint = hint),
        }
    }

    /// Empties the ICMP buckets of a source's prefix. The programs send it no message for an hour.
    pub fn exhaust_icmp(&self, source: IpAddr) {
        let refusals = prefix_of(source);
        self.exhaust_bucket(refusals);
        self.exhaust_bucket(refusals.about_size());
    }

    /// Empties the ICMP buckets of a pod's device.
    pub fn exhaust_icmp_of_pod(&self, device: u32) {
        self.exhaust_bucket(SourcePrefix::of_pod(device));
        self.exhaust_bucket(SourcePrefix::of_pod(device).about_size());
    }

    /// Empties only the buckets for refusals, of a source's prefix and of all CPUs.
    pub fn exhaust_refusals(&self, source: IpAddr) {
        self.exhaust_bucket(prefix_of(source));
        self.set_per_cpu::<u64>("ICMP_TOTAL", KIND_REFUSAL, in_an_hour());
    }

    /// Empties the ICMP buckets of all CPUs. The programs send no message for an hour.
    pub fn exhaust_all_icmp(&self) {
        (0..KINDS).for_each(|kind| self.set_per_cpu::<u64>("ICMP_TOTAL", kind, in_an_hour()));
    }

    fn exhaust_bucket(&self, prefix: SourcePrefix) {
        self.insert::<SourcePrefix, u64>("ICMP_SOURCES", prefix, in_an_hour());
    }

    /// Returns, for each source prefix, the time at which its ICMP bucket is full again.
    #[must_use]
    pub fn icmp_buckets(&self) -> Vec<(SourcePrefix, u64)> {
        self.entries::<SourcePrefix, u64>("ICMP_SOURCES")
    }

    /// Writes the hop to a backend's own address, as if a program had just asked the FIB.
    pub fn hop(&self, at: SocketAddr, hop: Hop<Addr6>) {
        let reference = self.backends.borrow()[&at];
        let Hop { source, device, mtu, flags, destination_mac, source_mac, .. } = hop;
        // The time is in the future, so the programs believe the hop until then.
        let asked = u32::MAX;
        self.mark_address(unmapped(source.0), FILTER_SERVED);
        if at.is_ipv4() {
            let [_, _, _, word] = source.0;
            let source = Addr4([word]);
            let hop =
                Hop { source, backend: reference.0, asked, device, mtu, flags, destination_mac, source_mac };
            self.set::<Hop<Addr4>>("HOPS4", reference.id(), hop);
        } else {
            self.set::<Hop<Addr6>>("HOPS6", reference.id(), Hop { backend: reference.0, asked, ..hop });
        }
    }

    /// Returns the device that leads to a backend on another node, as the programs recorded it.
    #[must_use]
    pub fn device_towards(&self, at: SocketAddr) -> u32 {
        let id = self.backends.borrow()[&at].id();
        match at {
            SocketAddr::V4(_) => self.get::<Hop<Addr4>>("HOPS4", id).device,
            SocketAddr::V6(_) => self.get::<Hop<Addr6>>("HOPS6", id).device,
        }
    }

    /// Returns the number of packets with a known first fragment, of both families.
    #[must_use]
    pub fn fragmented_packets(&self) -> usize {
        self.entries::<FragmentKey<Addr4>, u64>("FRAGMENTS4").len()
            + self.entries::<FragmentKey<Addr6>, u64>("FRAGMENTS6").len()
    }

    /// Returns the number of held fragments.
    #[must_use]
    pub fn held_fragments(&self) -> usize {
        self.entries::<HeldKey, Held>("HELD").len()
    }

    /// Ages the entry of every packet with a known first fragment by `seconds`.
    pub fn age_fragments(&self, seconds: u16) {
        self.age_fragments_of::<Addr4>(seconds);
        self.age_fragments_of::<Addr6>(seconds);
    }

    fn age_fragments_of<A: FamilyMaps>(&self, seconds: u16)
    where
        FragmentKey<A>: aya::Pod,
    {
        let map = A::map("FRAGMENTS");
        for (key, word) in self.entries::<FragmentKey<A>, u64>(&map) {
            let [.., low, high] = word.to_le_bytes();
            let seen = u16::from_le_bytes([low, high]).wrapping_sub(seconds);
            let word = word & 0xffff_ffff_ffff | u64::from(seen) << 48;
            self.insert::<FragmentKey<A>, u64>(&map, key, word);
        }
    }

    /// Ages every held fragment by `seconds`.
    pub fn age_held_fragments(&self, seconds: u32) {
        for (key, held) in self.entries::<HeldKey, Held>("HELD") {
            let aged = Held { seen: held.seen.wrapping_sub(seconds), ..held };
            self.insert::<HeldKey, Held>("HELD", key, aged);
        }
    }

    /// Writes a device as the agent does.
    pub fn device(&self, index: u32, device: Device) {
        self.insert::<u32, Device>("DEVICES", index, device);
    }

    fn backend(&self, at: SocketAddr, way: u32, place: u8) -> BackendRef {
        if let Some(known) = self.backends.borrow().get(&at) {
            return *known;
        }
        let reference = BackendRef::new(self.next_backend.replace(self.next_backend.get() + 1), 5);
        self.backends.borrow_mut().insert(at, reference);
        match at.ip() {
            IpAddr::V4(address) => self.write_backend(Addr4::from(address), at.port(), reference, way, place),
            IpAddr::V6(address) => self.write_backend(Addr6::from(address), at.port(), reference, way, place),
        }
        reference
    }

    fn write_backend<A: FamilyMaps>(&self, address: A, port: u16, reference: BackendRef, way: u32, place: u8)
    where
        Backend<A>: aya::Pod,
    {
        let port = port.to_be();
        let backend = Backend {
            address,
            port,
            generation: reference.generation(),
            flags: BACKEND_EXISTS | BACKEND_READY | BACKEND_SERVING | place,
            way,
            hint: hint(&address, port).into(),
        };
        self.set::<Backend<A>>(&A::map("BACKENDS"), reference.id(), backend);
    }

    fn change_backend<A: FamilyMaps>(&self, id: u32, change: impl Fn(&mut Backend<A>))
    where
        Backend<A>: aya::Pod,
    {
        let mut backend = self.get::<Backend<A>>(&A::map("BACKENDS"), id);
        change(&mut backend);
        self.set::<Backend<A>>(&A::map("BACKENDS"), id, backend);
    }
}

/// Returns the time in an hour, in nanoseconds of the programs' clock.
fn in_an_hour() -> u64 {
    (monotonic_seconds() + 3600) * 1_000_000_000
}

/// Returns the bucket for refusals of an address's prefix.
fn prefix_of(source: IpAddr) -> SourcePrefix {
    SourcePrefix::new(match source {
        IpAddr::V4(source) => {
            let [a, b, c, _] = source.octets();
            [0, u32::from_ne_bytes([a, b, c, 0])]
        }
        IpAddr::V6(source) => {
            let [first, second, ..] = Addr6::from(source).0;
            [first, second]
        }
    })
}
