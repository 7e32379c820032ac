use super::*;
use crate::model::{Kind, ObjectKey};

/// Entries, the accepted sources of each family, and the number of problems.
type Reading = (&'static [&'static str], Option<&'static str>, Option<&'static str>, usize);
/// Entries, load balancer addresses, and the accepted sources of each family.
type Guarding =
    (&'static [&'static str], &'static [&'static str], Option<&'static str>, Option<&'static str>);

/// Returns the accepted sources of a list by family, and the number of problems.
fn read(entries: &[&str]) -> ([Option<String>; 2], usize) {
    let key = ObjectKey { kind: Kind::Service, namespace: "default".to_owned(), name: "web".to_owned() };
    let mut notes = Notes::on(key, None);
    let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
    let ranges = read_source_ranges(&entries, &mut notes);
    (text(&ranges), notes.problems.len())
}

fn text(ranges: &SourceRanges) -> [Option<String>; 2] {
    [Family::V4, Family::V6].map(|family| {
        let ranges = ranges.get(&family)?.iter().map(ToString::to_string);
        Some(ranges.collect::<Vec<_>>().join(" "))
    })
}

#[test]
fn a_list_of_source_ranges_lets_in_what_it_names_in_each_family() {
    let cases: &[Reading] = &[
        (&[], None, None, 0),
        (&["", "  "], None, None, 0),
        (&["192.0.2.0/24"], Some("192.0.2.0/24"), None, 0),
        (&[" 192.0.2.0/24 ", "192.0.2.0/24"], Some("192.0.2.0/24"), None, 0),
        (&["192.0.2.77/24"], Some("192.0.2.0/24"), None, 0),
        (&["2001:db8::1/64"], None, Some("2001:db8::/64"), 0),
        (&["10.0.0.0/8", "2001:db8::/64"], Some("10.0.0.0/8"), Some("2001:db8::/64"), 0),
        (&["0.0.0.0/0"], None, None, 0),
        (&["0.0.0.0/0", "10.0.0.0/8", "2001:db8::/64"], None, Some("2001:db8::/64"), 0),
        (&["10.0.0.0/8", "::/0"], Some("10.0.0.0/8"), None, 0),
        (&["any"], Some(""), Some(""), 1),
        (&["any", "10.0.0.0/8"], Some("10.0.0.0/8"), Some(""), 1),
        (&["10.0.0.0/33", "::/0"], Some(""), None, 1),
        (&["10.0.0.1"], Some(""), Some(""), 1),
        (&["010.000.0.0/08"], Some("10.0.0.0/8"), None, 0),
        (&["::ffff:10.0.0.0/104"], Some("10.0.0.0/8"), None, 0),
        (&["::ffff:010.0.0.0/104", "::ffff:0:0/96"], None, None, 0),
        (&["::ffff:10.0.0.0/95"], Some(""), Some(""), 1),
        (&["10.0.0.0/+8"], Some(""), Some(""), 1),
        (&["10.0.0.0/"], Some(""), Some(""), 1),
    ];
    for (entries, v4, v6, warnings) in cases {
        let expected = [v4.map(str::to_owned), v6.map(str::to_owned)];
        assert_eq!(read(entries), (expected, *warnings), "{entries:?}");
    }
}

#[test]
fn who_lets_the_node_in_lets_in_what_it_sends_from_the_vip_itself() {
    let cases: &[Guarding] = &[
        (&["192.0.2.0/24"], &["203.0.113.1"], Some("192.0.2.0/24 203.0.113.1/32"), None),
        (&["192.0.2.1/32"], &["203.0.113.1"], Some("192.0.2.1/32 203.0.113.1/32"), None),
        (&["192.0.2.2/32"], &["203.0.113.1"], Some("192.0.2.2/32"), None),
        (&["10.0.0.0/8"], &["203.0.113.1"], Some("10.0.0.0/8"), None),
        (&["2001:db8::/64"], &["2001:db8:f::1"], None, Some("2001:db8::/64 2001:db8:f::1/128")),
        // The families are separate. A range has no effect without an address of its family.
        (&["192.0.2.0/24", "2001:db8:1::/64"], &["2001:db8:f::1"], None, Some("2001:db8:1::/64")),
        (&["192.0.2.0/24"], &["2001:db8:f::1"], None, None),
        (&["192.0.2.0/24"], &[], None, None),
        (&["0.0.0.0/0"], &["203.0.113.1"], None, None),
        (&["any"], &["203.0.113.1"], Some(""), None),
    ];
    let own = ["192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap()).into();
    for (entries, vips, v4, v6) in cases {
        let key = ObjectKey { kind: Kind::Service, namespace: String::new(), name: String::new() };
        let entries: Vec<String> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        let vips: Vec<IpAddr> = vips.iter().map(|vip| vip.parse().unwrap()).collect();
        let ranges = read_source_ranges(&entries, &mut Notes::on(key, None));
        let expected = [v4.map(str::to_owned), v6.map(str::to_owned)];
        assert_eq!(text(&with_vips(ranges, &vips, &own)), expected, "{entries:?} {vips:?}");
    }
}
