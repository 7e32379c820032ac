use crate::config::tests::{refused, resolve};
use crate::config::{IpvsSettings, ProxyMode};
use crate::dataplane::ipvs::{Arp, Masquerade, Rules};
use crate::dataplane::{Encapsulation, Mark, RejectUnknown};
use crate::model::Scheduler;

#[test]
fn what_only_ipvs_needs_is_taken_from_flags() {
    let settings = resolve(
        "--proxy-mode ipvs --ipvs-scheduler mh --ipvs-exclude-cidrs 192.0.2.0/24,2001:db8::/64 --ipvs-strict-arp \
         --reject-unknown-ports all --cluster-cidr 10.244.0.0/16 --fwmark 0x10/0xff --dsr-encap fou,ipip",
    )
    .unwrap();
    assert_eq!(settings.proxy_mode, ProxyMode::Ipvs);
    let ranges = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
    let rules = Rules {
        scheduler: Scheduler::Mh,
        excluded: ranges(&["192.0.2.0/24", "2001:db8::/64"]),
        reject_unknown: RejectUnknown::All,
        masquerade: Masquerade::Outside(ranges(&["10.244.0.0/16"])),
        encapsulation: Encapsulation::Fou,
        also_taken: Some(Encapsulation::Ipip),
    };
    let mark = Mark { value: 0x10, mask: 0xff };
    let expected = IpvsSettings { rules, mark, arp: Arp::Strict, ..IpvsSettings::default() };
    assert_eq!(settings.ipvs, expected);
    let all = |flags: &str| resolve(flags).unwrap().ipvs.rules.masquerade;
    assert_eq!(all("--masquerade-all"), Masquerade::All);
    assert_eq!(all("--masquerade-all=false"), Masquerade::default());
}

#[test]
fn a_wrong_value_names_the_flag_and_what_it_takes() {
    refused(
        "--ipvs-scheduler fastest",
        "--ipvs-scheduler: \"fastest\" is not accepted; takes rr, wrr, lc, wlc, lblc, lblcr, sh, dh, sed, nq, fo, ovf or mh",
    );
    refused("--masquerade-all=1", "--masquerade-all: \"1\" is not accepted; takes true or false");
    refused("--ipvs-strict-arp=on", "--ipvs-strict-arp: \"on\" is not accepted; takes true or false");
    refused(
        "--ipvs-exclude-cidrs here",
        "--ipvs-exclude-cidrs: \"here\" is not accepted; takes a CIDR such as 203.0.113.0/24 or 2001:db8::/64",
    );
    refused(
        "--proxy-mode ipvs --fwmark 0/0",
        "--fwmark: 0/0 is not accepted with --proxy-mode ipvs; takes a mark, which says what is masqueraded",
    );
}
