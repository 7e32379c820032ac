//! Parts of programs: programs of their own, which a program ends in by a tail call.
//!
//! The kernel verifies and patches each program as a whole, and the patching takes time by the square of the
//! size. The IPv4 path stays in the program itself, because a tail call costs a nanosecond or more.
//!
//! Each program has an array of its parts. The loader loads them and fills the array before the program
//! serves.

/// A part, which is an index in each array of parts.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// TCP, UDP and SCTP over IPv6.
    Ipv6 = 0,
    /// ICMP.
    Icmp4 = 1,
    /// `ICMPv6`.
    Icmp6 = 2,
    /// Tunnel packets with an outer IPv4 header.
    Tunnel4 = 3,
    /// Tunnel packets with an outer IPv6 header.
    Tunnel6 = 4,
    /// ICMP errors in such packets with an outer IPv4 header.
    TunnelIcmp4 = 5,
    /// The same with an outer IPv6 header.
    TunnelIcmp6 = 6,
    /// IPv4 packets whose client's address is translated, too, for the first time.
    Snat4 = 7,
    /// IPv6 packets whose client's address is translated, too.
    Snat6 = 8,
    /// Replies to translated IPv4 clients.
    SnatReply4 = 9,
    /// Replies to translated IPv6 clients.
    SnatReply6 = 10,
    /// Refused IPv4 packets: they are cut, or their sender is told.
    Refusal4 = 11,
    /// Refused IPv6 packets: their sender is told.
    Refusal6 = 12,
    /// Questions for the MAC address of an address that this node announces: ARP, Neighbour Discovery.
    Announced = 13,
}

/// The number of entries of each array.
pub const PART_ENTRIES: u32 = 14;

/// A part of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartProgram {
    /// Name of the program that ends in the part.
    pub of: &'static str,
    /// Name of the array, a map of the object.
    pub array: &'static str,
    /// Index in the array.
    pub part: Part,
    /// Name of the part's own program. The kernel keeps 15 bytes of a name.
    pub name: &'static str,
}

macro_rules! parts {
    ($($of:literal $array:literal { $($part:ident $name:literal)+ })+) => {
        /// All parts.
        pub const PARTS: &[PartProgram] = &[
            $($(PartProgram { of: $of, array: $array, part: Part::$part, name: $name },)+)+
        ];
        /// The names of all arrays.
        pub const PART_ARRAYS: &[&str] = &[$($array),+];
    };
}

parts! {
    "xdp_ingress" "XDP_PARTS" {
        Ipv6 "xdp_ipv6"
        Icmp4 "xdp_icmp4"
        Icmp6 "xdp_icmp6"
        Tunnel4 "xdp_tunnel4"
        Tunnel6 "xdp_tunnel6"
        TunnelIcmp4 "xdp_tun_icmp4"
        TunnelIcmp6 "xdp_tun_icmp6"
        Snat4 "xdp_snat4"
        Snat6 "xdp_snat6"
        SnatReply4 "xdp_snat_reply4"
        SnatReply6 "xdp_snat_reply6"
        Refusal4 "xdp_refusal4"
        Refusal6 "xdp_refusal6"
        Announced "xdp_announced"
    }
    "tc_ingress" "TC_PARTS" {
        Ipv6 "tc_ipv6"
        Icmp4 "tc_icmp4"
        Icmp6 "tc_icmp6"
        Tunnel4 "tc_tunnel4"
        Tunnel6 "tc_tunnel6"
        TunnelIcmp4 "tc_tun_icmp4"
        TunnelIcmp6 "tc_tun_icmp6"
        Snat4 "tc_snat4"
        Snat6 "tc_snat6"
        SnatReply4 "tc_snat_reply4"
        SnatReply6 "tc_snat_reply6"
        Refusal4 "tc_refusal4"
        Refusal6 "tc_refusal6"
        Announced "tc_announced"
    }
    "tc_ingress_l3" "L3_PARTS" {
        Ipv6 "l3_ipv6"
        Icmp4 "l3_icmp4"
        Icmp6 "l3_icmp6"
        Tunnel4 "l3_tunnel4"
        Tunnel6 "l3_tunnel6"
        TunnelIcmp4 "l3_tun_icmp4"
        TunnelIcmp6 "l3_tun_icmp6"
        Snat4 "l3_snat4"
        Snat6 "l3_snat6"
        SnatReply4 "l3_snat_reply4"
        SnatReply6 "l3_snat_reply6"
        Refusal4 "l3_refusal4"
        Refusal6 "l3_refusal6"
    }
    "tc_pod_in" "POD_PARTS" {
        Ipv6 "pod_ipv6"
        Icmp4 "pod_icmp4"
        Icmp6 "pod_icmp6"
        Snat4 "pod_snat4"
        Snat6 "pod_snat6"
        SnatReply4 "pod_snat_reply4"
        SnatReply6 "pod_snat_reply6"
        Refusal4 "pod_refusal4"
        Refusal6 "pod_refusal6"
    }
}

/// Returns the parts of a program.
pub fn parts_of(program: &str) -> impl Iterator<Item = &'static PartProgram> {
    PARTS.iter().filter(move |part| part.of == program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_every_index_fits_its_array() {
        for part in PARTS {
            assert!(part.name.len() <= 15, "{}", part.name);
            assert!((part.part as u32) < PART_ENTRIES, "{}", part.name);
        }
    }

    #[test]
    fn no_two_parts_have_a_name_or_a_place_in_common() {
        for (index, one) in PARTS.iter().enumerate() {
            for other in &PARTS[..index] {
                assert_ne!(one.name, other.name);
                assert_ne!((one.array, one.part), (other.array, other.part));
            }
        }
    }
}
