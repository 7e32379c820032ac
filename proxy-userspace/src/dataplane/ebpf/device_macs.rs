//! The MAC addresses of uplinks, which tell XDP the frames that a switch floods.

use proxy_common::device_mac::{DEVICE_MAC_WORDS, device_mac_place, device_mac_word, mac_number};

use super::maps::Maps;
use crate::node::Topology;

impl Maps {
    /// Writes the MAC addresses of the uplinks, and returns the number of changes.
    pub fn write_device_macs(&self, topology: &Topology) -> usize {
        let Some(macs) = &self.device_macs else { return 0 };
        let changes = (0..).zip(words(topology)).filter(|(place, word)| macs.load(*place) != *word);
        changes.filter(|(place, word)| macs.store(*place, *word)).count()
    }
}

/// Returns the words of DEVICE_MACS. Uplinks that share a word have none.
fn words(topology: &Topology) -> [u64; DEVICE_MAC_WORDS as usize] {
    let mut words = [None; DEVICE_MAC_WORDS as usize];
    for (index, target) in topology.devices.iter().filter(|(_, target)| target.is_uplink()) {
        let place = usize::try_from(device_mac_place(*index)).ok();
        let Some(word) = place.and_then(|place| words.get_mut(place)) else { continue };
        let wanted = target.mac.map_or(0, |mac| device_mac_word(*index, mac_number(mac)));
        *word = Some(word.map_or(wanted, |_| 0));
    }
    words.map(Option::unwrap_or_default)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::node::{AttachTarget, Hook};

    #[test]
    fn each_uplink_has_a_word_unless_it_shares_one_or_has_no_address() {
        let target = |hook, mac| AttachTarget {
            name: "eth0".to_owned(),
            hooks: BTreeSet::from([hook]),
            mac,
            source_v4: None,
            source_v6: None,
        };
        let uplink = |byte| target(Hook::TcIngress, Some([2, 0, 0, 0, 0, byte]));
        let devices = [
            (2, uplink(2)),
            (3, target(Hook::TcPodIn, Some([2, 0, 0, 0, 0, 3]))),
            (4, target(Hook::TcIngressL3, None)),
            (5, uplink(5)),
            (5 + DEVICE_MAC_WORDS, uplink(6)),
        ];
        let topology = Topology { devices: devices.into(), ..Topology::default() };
        let words = words(&topology);
        assert_eq!(words[2], device_mac_word(2, mac_number([2, 0, 0, 0, 0, 2])));
        assert!(words.iter().enumerate().all(|(place, word)| place == 2 || *word == 0));
    }
}
