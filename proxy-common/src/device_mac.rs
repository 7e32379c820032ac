//! DEVICE_MACS: the MAC addresses of uplinks. A switch that does not know an address floods its frames to all ports, and
//! only the node with that address may serve them (decision 186).

/// The number of words in DEVICE_MACS.
pub const DEVICE_MAC_WORDS: u32 = 1 << 8;

/// The bits of a word that are the MAC address, its first byte lowest. The others are the low bits of the interface
/// index, because devices share words.
const MAC: u64 = (1 << 48) - 1;
/// The bit of an address that is for a group: broadcast, multicast.
const GROUP: u64 = 1;
/// The addresses of virtual routers without their last byte, which is the router's number (VRRP, RFC 9568 section 7.3).
/// A macvlan device above the uplink has such an address.
const VIRTUAL_ROUTERS: [u64; 2] = [0x01_00_5e_00_00, 0x02_00_5e_00_00];

/// Returns the place of a device's word.
#[inline(always)]
#[must_use]
pub const fn device_mac_place(device: u32) -> u32 {
    device % DEVICE_MAC_WORDS
}

/// Returns a MAC address as a number, its first byte lowest.
#[must_use]
pub fn mac_number(mac: [u8; 6]) -> u64 {
    mac.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the MAC address of a number: the inverse of [`mac_number`].
#[must_use]
pub fn mac_of(number: u64) -> [u8; 6] {
    let [first, second, third, fourth, fifth, sixth, ..] = number.to_le_bytes();
    [first, second, third, fourth, fifth, sixth]
}

/// Returns the word of a device. Zero = unknown.
#[inline(always)]
#[must_use]
pub const fn device_mac_word(device: u32, mac: u64) -> u64 {
    (device as u64) << 48 | mac & MAC
}

/// Returns whether a frame for this MAC address is not for the device, by the word at its place. An unknown device
/// takes all frames.
#[inline(always)]
#[must_use]
pub const fn is_for_another_mac(word: u64, device: u32, mac: u64) -> bool {
    let is_known = word != 0 && word & !MAC == (device as u64) << 48;
    let router = mac & 0xff_ffff_ffff;
    is_known
        && word & MAC != mac & MAC
        && mac & GROUP == 0
        && router != VIRTUAL_ROUTERS[0]
        && router != VIRTUAL_ROUTERS[1]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 7];

    fn is_refused(device: u32, mac: [u8; 6]) -> bool {
        is_for_another_mac(device_mac_word(3, mac_number(OWN)), device, mac_number(mac))
    }

    #[test]
    fn the_first_byte_of_a_mac_address_is_the_lowest_of_its_number() {
        assert_eq!(mac_number([1, 2, 3, 4, 5, 6]), 0x06_05_04_03_02_01);
        assert_eq!(mac_of(mac_number([1, 2, 3, 4, 5, 6])), [1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_device_takes_frames_for_itself_for_groups_and_for_virtual_routers() {
        assert!(!is_refused(3, OWN));
        for others in [[2, 0, 0, 0, 0, 8], [2, 1, 0, 0, 0, 7], [0, 0, 0x5e, 0, 3, 1], [0; 6]] {
            assert!(is_refused(3, others), "{others:x?}");
        }
        for allowed in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [0, 0, 0x5e, 0, 1, 9], [0, 0, 0x5e, 0, 2, 255]] {
            assert!(!is_refused(3, allowed), "{allowed:x?}");
        }
    }

    #[test]
    fn a_device_that_shares_a_word_and_one_without_any_take_all_frames() {
        assert_eq!(device_mac_place(3), device_mac_place(3 + DEVICE_MAC_WORDS));
        assert!(!is_refused(3 + DEVICE_MAC_WORDS, [2, 0, 0, 0, 0, 8]));
        assert!(!is_for_another_mac(0, 3, mac_number(OWN)));
    }
}
