//! An emptied bed, for the next test.

use proxy_common::affinity::{Affinity, AffinityKey};
use proxy_common::announced::AnnouncedKey;
use proxy_common::backend::Backend;
use proxy_common::config::{AGENT_WORDS, PORT_GROUP, PORT_GROUPS};
use proxy_common::event::{Monitor, Recording};
use proxy_common::flow::FlowKey;
use proxy_common::fragment::{FragmentKey, Held, HeldKey};
use proxy_common::frontend::{Frontend, FrontendKey};
use proxy_common::hop::{Device, Hop};
use proxy_common::icmp::{KINDS, SourcePrefix};
use proxy_common::selection::HintKey;
use proxy_common::vip::VipKey;
use proxy_common::way::{PeerKey, Way};
use proxy_common::{Addr4, Addr6};

use super::Bed;

impl Bed {
    /// Removes all entries of tests and programs, except statistics.
    pub(super) fn clear(&self) {
        self.clear_frontend_index();
        self.clear_hash::<FrontendKey<Addr4>, Frontend>("FRONTENDS4");
        self.clear_hash::<FrontendKey<Addr6>, Frontend>("FRONTENDS6");
        self.clear_hash::<HintKey, u32>("HINTS");
        self.clear_hash::<PeerKey, u32>("PEERS");
        self.clear_hash::<u32, Device>("DEVICES");
        self.clear_hash::<AffinityKey<Addr4>, Affinity>("AFFINITY4");
        self.clear_hash::<AffinityKey<Addr6>, Affinity>("AFFINITY6");
        self.clear_hash::<VipKey, u32>("VIPS");
        self.clear_hash::<AnnouncedKey, u64>("ANNOUNCED");
        self.clear_hash::<FragmentKey<Addr4>, u64>("FRAGMENTS4");
        self.clear_hash::<FragmentKey<Addr6>, u64>("FRAGMENTS6");
        self.clear_hash::<HeldKey, Held>("HELD");
        // A program marks the sources of hops by itself.
        let marked = self.marked.borrow();
        marked.iter().for_each(|(map, word)| self.set::<u64>(map, *word, 0));
        self.clear_hash::<FlowKey<Addr4>, u32>("NODE_FLOWS4");
        self.clear_hash::<FlowKey<Addr6>, u32>("NODE_FLOWS6");
        self.clear_hash::<SourcePrefix, u64>("ICMP_SOURCES");
        (0..KINDS).for_each(|kind| self.set_per_cpu::<u64>("ICMP_TOTAL", kind, 0));
        self.clear_source_ranges();
        self.forget_answers();
        self.forget_flows();
        (0..self.next_service.get()).for_each(|id| self.set::<u64>("SERVICES", id, 0));
        (0..self.next_slot.get()).for_each(|slot| self.set::<u64>("SELECTION", slot, 0));
        for id in 0..self.next_way.get() {
            self.set::<Way>("WAYS", id, Way::default());
            self.set::<u64>("NARROWED", id, 0);
        }
        for id in 0..self.next_backend.get() {
            self.set::<Backend<Addr4>>("BACKENDS4", id, Backend::default());
            self.set::<Backend<Addr6>>("BACKENDS6", id, Backend::default());
            self.set::<Hop<Addr4>>("HOPS4", id, Hop::default());
            self.set::<Hop<Addr6>>("HOPS6", id, Hop::default());
        }
        // What a CPU recorded within this second would count against the next test.
        self.set_per_cpu::<Recording>("RECORDING", 0, Recording::default());
        self.set::<Monitor>("MONITOR", 0, Monitor::default());
        (0..AGENT_WORDS).for_each(|index| self.set_agent_word(index, 0));
        for group in 0..PORT_GROUPS {
            self.set::<[u8; PORT_GROUP as usize]>("SERVED_PORTS", group, [0; PORT_GROUP as usize]);
        }
    }

    fn clear_hash<K: aya::Pod, V: aya::Pod>(&self, map: &str) {
        for (key, _) in self.entries::<K, V>(map) {
            self.remove::<K, V>(map, &key);
        }
    }
}
