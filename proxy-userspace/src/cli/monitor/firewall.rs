//! The packets that the pod firewall dropped.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use proxy_common::addr::unmapped;
use proxy_common::policy::{PolicyDirection, PolicyDrop, PolicyEvent};

use super::clock::Clock;
use super::decode::protocol_name;
use super::row::{EventRow, POLICY_DROP};
use crate::cli::error::CliError;
use crate::cli::place::Place;
use crate::dataplane::ebpf::firewall::{DropRecorder, KnownNames, PinnedFirewall};
use crate::node::device_name;

/// Protocols whose ports are identifiers of echo requests.
const ECHO: [u8; 2] = [1, 58];

/// A reader of the firewall's drops.
#[derive(Debug)]
pub struct Firewall {
    pinned: PinnedFirewall,
    drops: DropRecorder,
}

impl Firewall {
    /// Opens the drops; `None` where the firewall is off. `history` says whether the first reading returns those that are
    /// still there.
    pub fn start(place: &Place, history: bool) -> Result<Option<Self>, CliError> {
        let Some(pinned) = PinnedFirewall::find(&place.bpffs_path)? else { return Ok(None) };
        let drops = pinned.drops(history)?;
        Ok(Some(Self { pinned, drops }))
    }

    /// Returns the drops since the last reading, and the number of those that were overwritten.
    pub fn rows(&mut self, clock: &Clock) -> Result<(Vec<EventRow>, u64), CliError> {
        let recorded = self.drops.read()?;
        if recorded.events.is_empty() {
            return Ok((Vec::new(), recorded.missed));
        }
        // An agent may take the firewall away at this moment: a drop counts without names, too.
        let ends = recorded.events.iter().flat_map(|event| [event.source, event.destination]);
        let addresses: BTreeSet<_> = ends.filter(|words| *words != [0; 4]).map(unmapped).collect();
        let names = self.pinned.names(&addresses).unwrap_or_default();
        let rows = recorded.events.iter().map(|event| EventRow::of_policy(event, &names, clock));
        Ok((rows.collect(), recorded.missed))
    }
}

impl EventRow {
    /// Returns the row of a packet that the firewall dropped.
    pub fn of_policy(event: &PolicyEvent, names: &KnownNames, clock: &Clock) -> Self {
        let place = |words: [u32; 4], port: u16| {
            let port = if ECHO.contains(&event.protocol) { 0 } else { u16::from_be(port) };
            (words != [0; 4]).then(|| SocketAddr::new(unmapped(words), port))
        };
        let client = place(event.source, event.source_port);
        let frontend = place(event.destination, event.destination_port);
        // The device says whose packet it is, whatever address the packet has.
        let near = names.of_device(event.device).to_owned();
        let far = |place: Option<SocketAddr>| {
            place.map(|place| names.of_address(place.ip(), event.at).to_owned()).unwrap_or_default()
        };
        let is_egress = event.direction == PolicyDirection::Egress as u8;
        let direction = if is_egress { PolicyDirection::Egress } else { PolicyDirection::Ingress };
        let (client_pod, frontend_pod) = if is_egress { (near, far(frontend)) } else { (far(client), near) };
        Self {
            time: clock.time(event.at),
            kind: POLICY_DROP.into(),
            service: String::new(),
            protocol: if client.is_none() { String::new() } else { protocol_name(event.protocol) },
            client,
            frontend,
            backend: None,
            reason: PolicyDrop::from_number(event.reason).map_or("unknown", PolicyDrop::name).into(),
            program: "firewall".into(),
            function: String::new(),
            device: device_name(event.device).unwrap_or_else(|| event.device.to_string()),
            length: event.length,
            direction: direction.name().into(),
            client_pod,
            frontend_pod,
            frame: Vec::new(),
            is_bare: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proxy_common::addr::mapped;

    use super::*;
    use crate::dataplane::ebpf::firewall::OwnerView;

    fn names() -> KnownNames {
        let owner = |(address, name, since): (&str, &str, u64)| {
            (address.parse::<IpAddr>().unwrap(), OwnerView { name: name.to_owned(), since })
        };
        let owners = [
            ("10.1.0.1", "shop/web", 0),
            ("10.1.0.2", "shop/api", 3_500_000_000),
            ("fd00::2:5", "data/job", 0),
            ("10.2.0.6", "data/late", 3_500_000_001),
        ];
        KnownNames { by_device: [(1, "shop/web".to_owned())].into(), by_address: owners.map(owner).into() }
    }

    fn event(source: &str, destination: &str, direction: PolicyDirection) -> PolicyEvent {
        let place = |text: &str| {
            let place: SocketAddr = text.parse().unwrap();
            (mapped(place.ip()), place.port().to_be())
        };
        let ((source, source_port), (destination, destination_port)) = (place(source), place(destination));
        PolicyEvent {
            sequence: 1,
            at: 3_500_000_000,
            device: 1,
            length: 74,
            source,
            destination,
            source_port,
            destination_port,
            protocol: 6,
            direction: direction as u8,
            reason: PolicyDrop::Denied as u8,
            reserved: 0,
        }
    }

    fn row(event: &PolicyEvent) -> EventRow {
        EventRow::of_policy(event, &names(), &Clock::at(5_000_000_000, "2026-01-02T03:04:05Z"))
    }

    #[test]
    fn a_drop_names_the_pods_at_both_ends() {
        let from_api = row(&event("10.1.0.2:40000", "10.1.0.1:80", PolicyDirection::Ingress));
        assert_eq!(
            from_api.line(),
            "03:04:03.500  policy_drop  -                      10.1.0.2:40000         10.1.0.1:80/tcp        \
             denied (ingress of shop/web from shop/api, lo)\n"
        );
        let from_outside = row(&event("192.0.2.1:40000", "10.1.0.1:80", PolicyDirection::Ingress));
        assert!(
            from_outside.line().ends_with(" denied (ingress of shop/web, lo)\n"),
            "{}",
            from_outside.line()
        );
        let to_api = row(&event("10.1.0.1:40000", "10.1.0.2:80", PolicyDirection::Egress));
        assert!(
            to_api.line().ends_with(" denied (egress of shop/web to shop/api, lo)\n"),
            "{}",
            to_api.line()
        );
        let json = serde_json::to_value(&to_api).unwrap();
        assert_eq!(
            [&json["type"], &json["direction"], &json["client_pod"], &json["frontend_pod"], &json["reason"]],
            ["policy_drop", "egress", "shop/web", "shop/api", "denied"]
        );
        assert_eq!(serde_json::from_value::<EventRow>(json).unwrap(), to_api);
        assert!(to_api.is_of_namespace("shop") && !to_api.is_of_namespace("sho"));
    }

    #[test]
    fn a_pod_of_another_node_is_named_unless_it_got_the_address_after_the_drop() {
        let from_job = row(&event("[fd00::2:5]:40000", "[fd00::1]:80", PolicyDirection::Ingress));
        assert_eq!((&*from_job.client_pod, &*from_job.frontend_pod), ("data/job", "shop/web"));
        let to_late = row(&event("10.1.0.1:40000", "10.2.0.6:80", PolicyDirection::Egress));
        assert_eq!((&*to_late.client_pod, &*to_late.frontend_pod), ("shop/web", ""));
    }

    #[test]
    fn a_pod_that_sends_in_the_name_of_another_one_is_named_by_its_device() {
        let event = PolicyEvent {
            reason: PolicyDrop::ForeignSource as u8,
            ..event("10.1.0.2:40000", "192.0.2.1:80", PolicyDirection::Egress)
        };
        let row = row(&event);
        assert_eq!((row.client_pod.as_str(), row.frontend_pod.as_str()), ("shop/web", ""));
        assert!(row.line().ends_with("foreign_source (egress of shop/web, lo)\n"), "{}", row.line());
    }

    #[test]
    fn a_packet_that_can_not_be_read_has_no_ends_and_an_unknown_pod_its_device() {
        let event = PolicyEvent {
            device: 0x7fff_fffe,
            reason: PolicyDrop::UnknownPod as u8,
            ..PolicyEvent::default()
        };
        let row = row(&event);
        assert_eq!((row.client, row.frontend, row.protocol.as_str()), (None, None, ""));
        assert!(
            row.line().ends_with("unknown_pod (ingress of an unknown pod, 2147483646)\n"),
            "{}",
            row.line()
        );
    }

    #[test]
    fn an_echo_request_has_no_ports() {
        let event =
            PolicyEvent { protocol: 1, ..event("10.1.0.2:7", "10.1.0.1:0", PolicyDirection::Ingress) };
        let row = row(&event);
        assert_eq!((row.client.unwrap().port(), row.protocol.as_str()), (0, "ICMP"));
    }
}
