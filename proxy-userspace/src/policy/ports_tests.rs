use super::*;

const TCP: u8 = 6;

/// Returns the ports that prefixes cover.
fn covered(prefixes: &[(u16, u8)]) -> Vec<u16> {
    let covered = prefixes.iter().flat_map(|(port, bits)| {
        let last = u32::from(*port) + (1 << (PORT_BITS - bits)) - 1;
        *port..=u16::try_from(last).unwrap()
    });
    covered.collect()
}

#[test]
fn a_range_splits_into_the_fewest_prefixes_that_cover_it_exactly() {
    for (first, last, count) in [
        (80, 80, 1),
        (0, 65535, 1),
        (1, 65535, 16),
        (1024, 65535, 6),
        (1024, 2047, 1),
        (1000, 2000, 8),
        (65535, 65535, 1),
        (1, 65534, 30),
        (0, 0, 1),
    ] {
        let prefixes = split(first, last);
        assert_eq!(prefixes.len(), count, "{first}-{last}: {prefixes:?}");
        assert_eq!(covered(&prefixes), (first..=last).collect::<Vec<_>>(), "{first}-{last}");
    }
}

#[test]
fn ranges_that_overlap_or_adjoin_are_joined() {
    let mut ports = Ports::none();
    let joined = [(10, 20), (40, 50), (21, 25), (30, 35), (24, 29), (1, 2), (65535, 65535), (100, 65534)];
    // A gap of one port stays.
    let apart = [(52, 60), (37, 38)];
    for (first, last) in joined.into_iter().chain(apart) {
        ports.add(&Ports::range(Protocol::Tcp, first, last));
    }
    let Ports::Of(ranges) = &ports else { panic!("all") };
    let ranges: Vec<(u16, u16)> = ranges[&TCP].iter().map(|(first, last)| (*first, *last)).collect();
    assert_eq!(ranges, [(1, 2), (10, 35), (37, 38), (40, 50), (52, 60), (100, 65535)]);
}

#[test]
fn ranges_in_any_order_are_the_same_set() {
    let ranges = [(1, 5), (6, 6), (9, 12), (7, 8), (20, 30), (3, 25)];
    let joined = |order: &[usize]| {
        let mut ports = Ports::none();
        for at in order {
            ports.add(&Ports::range(Protocol::Udp, ranges[*at].0, ranges[*at].1));
        }
        ports
    };
    let one = joined(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(one, joined(&[5, 4, 3, 2, 1, 0]));
    assert_eq!(one, joined(&[2, 0, 4, 1, 5, 3]));
    assert_eq!(one, Ports::range(Protocol::Udp, 1, 30));
}

#[test]
fn all_traffic_swallows_ports_and_is_one_prefix() {
    let mut ports = Ports::range(Protocol::Tcp, 80, 80);
    assert_eq!(ports.prefixes(), [Some((TCP, 80, 16))]);
    ports.add(&Ports::All);
    ports.add(&Ports::range(Protocol::Sctp, 1, 9));
    assert_eq!(ports.prefixes(), [None]);
    assert_eq!(Ports::range(Protocol::Tcp, 0, u16::MAX).prefixes(), [Some((TCP, 0, 0))]);
}

#[test]
fn a_name_of_a_port_has_a_letter_and_no_odd_hyphens() {
    for name in ["http", "a", "8080-alt", "a-1-b", "abcdefghijklmno"] {
        assert!(is_port_name(name), "{name}");
    }
    for name in ["", "80", "HTTP", "-a", "a-", "a--b", "a_b", "abcdefghijklmnop"] {
        assert!(!is_port_name(name), "{name}");
    }
}
