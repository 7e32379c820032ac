use super::super::sysctl::tests::fresh;
use super::*;

/// Returns a host that records what it changes.
fn host(name: &str, values: &[(&str, &str)]) -> Host {
    let sysctls = fresh(name, values);
    let records = Records { directory: Some(sysctls.path("records")), is_home: |_| true };
    Host { sysctls, records }
}

impl Host {
    fn read(&self, key: &str) -> String {
        self.sysctls.read(key).unwrap()
    }

    fn end(&self) {
        fs::remove_dir_all(self.sysctls.path("")).unwrap();
    }
}

const OFF: [(&str, &str); 6] = [
    ("ipv4/ip_forward", "0\n"),
    ("ipv6/conf/all/forwarding", "0\n"),
    ("ipv6/conf/eth0.7/forwarding", "0\n"),
    ("ipv6/conf/eth0.7/accept_ra", "1\n"),
    ("ipv4/conf/all/rp_filter", "0\n"),
    ("ipv4/conf/eth0.7/rp_filter", "1\n"),
];

#[test]
fn forwarding_is_turned_on_and_router_advertisements_stay_heeded() {
    let host = host("forwarding", &OFF);
    host.prepare(&["eth0.7"]);
    assert_eq!(
        (host.read("ipv4/ip_forward"), host.read("ipv6/conf/all/forwarding")),
        ("1".into(), "1".into())
    );
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "2");
    assert_eq!(host.read("ipv4/conf/eth0.7/rp_filter"), "1", "one uplink: paths are symmetric");
    host.end();
}

#[test]
fn a_device_that_comes_after_forwarding_was_turned_on_heeds_router_advertisements_too() {
    let host = host("later", &OFF);
    host.prepare(&[]);
    fs::write(host.sysctls.path("ipv6/conf/eth0.7/forwarding"), "1\n").unwrap();
    host.prepare(&["eth0.7"]);
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "2");
    host.end();
}

#[test]
fn a_node_that_forwarded_before_goes_on_ignoring_router_advertisements() {
    let host = host("forwarded", &OFF);
    fs::write(host.sysctls.path("ipv6/conf/eth0.7/forwarding"), "1\n").unwrap();
    host.prepare(&["eth0.7"]);
    host.prepare(&["eth0.7", "eth1"]);
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "1", "the device did");
    host.end();
    let host = self::host("forwarded-all", &OFF);
    fs::write(host.sysctls.path(FORWARDING), "1\n").unwrap();
    host.prepare(&["eth0.7"]);
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "1", "all did");
    assert!(host.restore().is_empty());
    host.end();
}

#[test]
fn router_advertisements_are_as_they_were_once_forwarding_is_off_again() {
    let host = host("restored", &OFF);
    host.prepare(&["eth0.7"]);
    host.prepare(&["eth0.7"]);
    let again = Host { sysctls: host.sysctls.clone(), records: host.records.clone() };
    assert_eq!(again.restore(), ["net.ipv6.conf.eth0.7.accept_ra: 1 again"]);
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "1");
    assert_eq!(host.read("ipv6/conf/all/forwarding"), "1", "pods may rely on it");
    host.end();

    let host = self::host("still-on", &OFF);
    host.prepare(&["eth0.7"]);
    fs::write(host.sysctls.path("ipv6/conf/eth0.7/forwarding"), "1\n").unwrap();
    let said = host.restore();
    assert_eq!(said, ["net.ipv6.conf.eth0.7.accept_ra: stays 2 instead of 1, as forwarding stays on"]);
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "2");
    host.end();
}

#[test]
fn nothing_is_recorded_once_the_bpf_file_system_is_gone() {
    let mut host = host("no-bpffs", &OFF);
    host.records.is_home = is_bpffs;
    host.prepare(&["eth0.7"]);
    assert_eq!(host.read("ipv6/conf/eth0.7/accept_ra"), "2");
    assert!(!host.sysctls.path("records").exists());
    host.end();
}

#[test]
fn a_strict_reverse_path_filter_is_loosened_with_several_uplinks() {
    let host = host(
        "rp-filter",
        &[
            ("ipv4/conf/all/rp_filter", "1\n"),
            ("ipv4/conf/eth0/rp_filter", "0\n"),
            ("ipv4/conf/eth1/rp_filter", "1\n"),
        ],
    );
    host.prepare(&["eth0", "eth1"]);
    assert_eq!(host.read("ipv4/conf/eth0/rp_filter"), "2");
    assert_eq!(host.read("ipv4/conf/eth1/rp_filter"), "2");
    assert_eq!(host.read("ipv4/conf/all/rp_filter"), "1");
    host.end();
}

#[test]
fn ports_are_reserved_beside_those_that_are_already_and_only_ours_are_given_back() {
    let host = host("reserved", &[(RESERVED, "8080,61000-61999\n")]);
    host.reserve_ports(&(61000..=65535));
    assert_eq!(host.read(RESERVED), "8080,61000-61999,62000-65535");
    // The kernel's format of the setting.
    fs::write(host.sysctls.path(RESERVED), "8080,61000-65535\n").unwrap();
    host.reserve_ports(&(61000..=65535));
    assert_eq!(host.read(RESERVED), "8080,61000-65535");
    assert_eq!(host.restore(), ["net.ipv4.ip_local_reserved_ports: 62000-65535 given back"]);
    assert_eq!(host.read(RESERVED), "8080,61000-61999");
    assert!(host.restore().is_empty() && !host.records.home().unwrap().exists());
    host.end();
}

#[test]
fn another_range_takes_the_place_of_the_one_before() {
    let host = host("other-range", &[(RESERVED, "\n")]);
    host.reserve_ports(&(61000..=65535));
    host.reserve_ports(&(20000..=20999));
    assert_eq!(host.read(RESERVED), "20000-20999");
    assert_eq!(host.restore(), ["net.ipv4.ip_local_reserved_ports: 20000-20999 given back"]);
    assert_eq!(host.read(RESERVED), "");
    host.end();
}
