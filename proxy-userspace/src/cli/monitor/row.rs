//! An event as it is shown.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use jiff::{Timestamp, Unit};
use nix::net::if_::if_indextoname;
use proxy_common::addr::unmapped;
use proxy_common::event::{Event, SOCKET};
use proxy_common::policy::PolicyDirection;
use proxy_common::selection::BackendRef;
use proxy_common::verdict::Program;
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::decode::{Headers, headers, protocol_name};
use crate::cli::output::{Column, Row};
use crate::dataplane::ebpf::kernel_drops::KernelDropView;

/// The kind of a packet that the kernel dropped.
pub const KERNEL_DROP: &str = "kernel_drop";
/// The kind of a packet that the pod firewall dropped.
pub const POLICY_DROP: &str = "policy_drop";
/// The first line of the table.
pub const HEADER: &str =
    "TIME          WHAT         SERVICE                FROM                   TO                     WHY\n";

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRow {
    /// Time, RFC 3339.
    pub time: Timestamp,
    /// `drop`, `opened`, `established`, `refused`, `reset`, [`KERNEL_DROP`] or [`POLICY_DROP`].
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// `namespace/name:port`; empty if the programs did not get that far.
    pub service: String,
    /// `TCP`, `UDP`, `SCTP`, or the protocol's number.
    pub protocol: String,
    /// The client, or the sender of a dropped packet; none for a socket that is refused.
    pub client: Option<SocketAddr>,
    /// The frontend, or the destination of a dropped packet.
    pub frontend: Option<SocketAddr>,
    /// The backend.
    pub backend: Option<SocketAddr>,
    /// The reason of a drop; empty for other events.
    pub reason: Cow<'static, str>,
    /// The program that dropped a packet, or `socket`, `kernel` or `firewall`; empty for other events.
    pub program: Cow<'static, str>,
    /// The kernel's function that dropped a packet; empty if it was none, or if the kernel does not tell.
    pub function: String,
    /// The device of a dropped packet.
    pub device: String,
    /// Bytes of the frame; 0 for other events.
    pub length: u32,
    /// Of a [`POLICY_DROP`]: `ingress` or `egress`, seen from the pod of the device; else empty.
    #[serde(default)]
    pub direction: Cow<'static, str>,
    /// Of a [`POLICY_DROP`]: the pod that sent it, as `namespace/name`; else empty.
    #[serde(default)]
    pub client_pod: String,
    /// Of a [`POLICY_DROP`]: the pod that it was for, as `namespace/name`; else empty.
    #[serde(default)]
    pub frontend_pod: String,
    /// The beginning of the frame; empty for other events.
    #[serde(skip)]
    pub frame: Vec<u8>,
    /// Whether the frame begins with an IP header.
    #[serde(skip)]
    pub is_bare: bool,
}

impl EventRow {
    /// Returns the row of an event. `backend` finds the address of a reference in a family.
    pub fn of(
        event: &Event,
        labels: &BTreeMap<u32, String>,
        clock: &Clock,
        backend: impl Fn(BackendRef, bool) -> Option<SocketAddr>,
    ) -> Self {
        let frame = frame(event);
        let headers = tuple(event, &frame);
        let is_v6 = headers.destination.is_some_and(|address| address.is_ipv6());
        let is_drop = event.captured != 0 || event.program != 0 || event.reason != 0;
        Self {
            time: clock.time(event.at),
            kind: event.kind().map_or("unknown", |kind| kind.name()).into(),
            service: labels.get(&event.service).cloned().unwrap_or_default(),
            protocol: headers.protocol.map(protocol_name).unwrap_or_default(),
            client: headers.source,
            frontend: headers.destination,
            backend: Some(BackendRef(event.backend))
                .filter(|reference| !reference.is_none())
                .and_then(|reference| backend(reference, is_v6)),
            reason: event.reason().filter(|_| is_drop).map_or("", |reason| reason.name()).into(),
            program: if is_drop { program(event.program) } else { "" }.into(),
            function: String::new(),
            device: device(event.device),
            length: event.length,
            direction: "".into(),
            client_pod: String::new(),
            frontend_pod: String::new(),
            frame,
            is_bare: event.is_bare != 0,
        }
    }

    /// Returns the row of a packet that the kernel dropped, of a Service.
    pub fn of_kernel(drop: &KernelDropView, service: &str, clock: &Clock, own_namespace: u32) -> Self {
        let headers = headers(&drop.packet, true);
        let device = match drop.namespace {
            0 => String::new(),
            namespace if namespace == own_namespace => device(drop.device),
            namespace => format!("device {} of network namespace {namespace}", drop.device),
        };
        Self {
            time: clock.time(drop.at),
            kind: KERNEL_DROP.into(),
            service: service.to_owned(),
            protocol: headers.protocol.map(protocol_name).unwrap_or_default(),
            client: headers.source,
            frontend: headers.destination,
            backend: None,
            reason: drop.reason.clone().into(),
            program: "kernel".into(),
            function: drop.function.clone(),
            device,
            length: u32::from(length(&drop.packet).unwrap_or(0)),
            direction: "".into(),
            client_pod: String::new(),
            frontend_pod: String::new(),
            frame: drop.packet.clone(),
            is_bare: true,
        }
    }

    /// Returns the line of the table.
    pub fn line(&self) -> String {
        let [time, kind, service, from, to, why] = self.texts();
        format!("{time:<13} {kind:<12} {service:<22} {from:<22} {to:<22} {why}\n")
    }

    /// Returns the cell WHY of a packet that the firewall dropped.
    fn why_policy(&self) -> String {
        let (near, far, towards) = if self.direction == PolicyDirection::Egress.name() {
            (&self.client_pod, &self.frontend_pod, "to")
        } else {
            (&self.frontend_pod, &self.client_pod, "from")
        };
        let near = if near.is_empty() { "an unknown pod" } else { near };
        let far = if far.is_empty() { String::new() } else { format!(" {towards} {far}") };
        format!("{} ({} of {near}{far}, {})", self.reason, self.direction, self.device)
    }

    /// Whether one of its ends is a pod of a namespace.
    pub fn is_of_namespace(&self, namespace: &str) -> bool {
        let is_of = |pod: &String| pod.split_once('/').is_some_and(|(of_pod, _)| of_pod == namespace);
        [&self.client_pod, &self.frontend_pod].into_iter().any(is_of)
    }

    /// Returns the cells of the table.
    fn texts(&self) -> [String; 6] {
        let place =
            |place: Option<SocketAddr>| place.map_or_else(|| "-".to_owned(), |place| place.to_string());
        let why = match (&*self.kind, self.backend) {
            (POLICY_DROP, _) => self.why_policy(),
            (KERNEL_DROP, _) => {
                let by = if self.function.is_empty() { &*self.program } else { &self.function };
                let place = if self.device.is_empty() { String::new() } else { format!(", {}", self.device) };
                format!("{} ({by}{place})", self.reason)
            }
            ("drop", _) if self.device.is_empty() => format!("{} ({})", self.reason, self.program),
            ("drop", _) => format!("{} ({}, {})", self.reason, self.program, self.device),
            (_, Some(backend)) => format!("backend {backend}"),
            _ => String::new(),
        };
        let time = self.time.round(Unit::Millisecond).unwrap_or(self.time);
        let service = if self.service.is_empty() { "-" } else { &self.service };
        [
            time.strftime("%H:%M:%S.%3f").to_string(),
            self.kind.to_string(),
            service.to_owned(),
            place(self.client),
            format!("{}/{}", place(self.frontend), self.protocol.to_lowercase()),
            why,
        ]
    }
}

impl Row for EventRow {
    const COLUMNS: &'static [Column] = &[
        Column::new("TIME", "time"),
        Column::new("WHAT", "type"),
        Column::new("SERVICE", "service"),
        Column::new("FROM", "client"),
        Column::new("TO", "frontend"),
        Column::new("WHY", "reason"),
    ];

    fn cells(&self, _: bool) -> Vec<String> {
        self.texts().into()
    }

    fn name(&self) -> String {
        self.service.clone()
    }
}

/// Returns the captured bytes.
fn frame(event: &Event) -> Vec<u8> {
    let bytes = event.frame.iter().flat_map(|word| word.to_ne_bytes());
    bytes.take(event.captured.into()).collect()
}

/// Returns the addresses of an event: those of the frame if there is one.
fn tuple(event: &Event, frame: &[u8]) -> Headers {
    if !frame.is_empty() {
        return headers(frame, event.is_bare != 0);
    }
    let place = |words: [u32; 4], port: u16| -> Option<SocketAddr> {
        let address: IpAddr = unmapped(words);
        (words != [0; 4]).then(|| SocketAddr::new(address, u16::from_be(port)))
    };
    Headers {
        source: place(event.source, event.source_port),
        destination: place(event.destination, event.destination_port),
        protocol: (event.protocol != 0).then_some(event.protocol),
    }
}

/// Returns the bytes of a packet by its IP header, which may be cut off.
fn length(packet: &[u8]) -> Option<u16> {
    let at = |offset: usize| Some(u16::from_be_bytes(*packet.get(offset..)?.first_chunk()?));
    match packet.first()? >> 4 {
        4 => at(2),
        _ => at(4).map(|payload| payload.saturating_add(40)),
    }
}

fn program(number: u8) -> &'static str {
    if number == SOCKET {
        return "socket";
    }
    Program::ALL.iter().find(|program| **program as u8 == number).map_or("unknown", |program| program.name())
}

/// Returns the name of a device, or its index if it is gone or in another network namespace.
fn device(index: u32) -> String {
    if index == 0 {
        return String::new();
    }
    if_indextoname(index).ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| index.to_string())
}

#[cfg(test)]
mod tests {
    use proxy_common::event::{CAPTURED_WORDS, EventKind};
    use proxy_common::verdict::Reason;

    use super::*;

    fn clock() -> Clock {
        Clock::at(5_000_000_000, "2026-01-02T03:04:05Z")
    }

    fn row(event: &Event) -> EventRow {
        let labels = BTreeMap::from([(7, "shop/web:http".to_owned())]);
        let backend = |reference: BackendRef, is_v6: bool| {
            (reference.id() == 3 && !is_v6).then(|| "10.1.0.1:8080".parse().unwrap())
        };
        EventRow::of(event, &labels, &clock(), backend)
    }

    fn mapped(address: [u8; 4]) -> [u32; 4] {
        [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes(address)]
    }

    #[test]
    fn an_event_of_a_connection_shows_its_tuple_and_its_backend() {
        let event = Event {
            at: 3_500_000_000,
            service: 7,
            backend: BackendRef::new(3, 1).0,
            source: mapped([198, 51, 100, 7]),
            destination: mapped([192, 0, 2, 10]),
            source_port: 40000_u16.to_be(),
            destination_port: 80_u16.to_be(),
            protocol: 6,
            kind: EventKind::Refused as u8,
            ..Event::default()
        };
        assert_eq!(
            row(&event).line(),
            "03:04:03.500  refused      shop/web:http          198.51.100.7:40000     192.0.2.10:80/tcp      \
             backend 10.1.0.1:8080\n"
        );
    }

    #[test]
    fn a_drop_shows_the_frames_tuple_and_the_reason() {
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([198, 51, 100, 7], [192, 0, 2, 12], 64)
            .tcp(41000, 80, 1, 1000);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &[]).unwrap();
        let captured = u16::try_from(bytes.len()).unwrap();
        bytes.resize(CAPTURED_WORDS * 8, 0);
        let mut event = Event {
            at: 5_000_000_000,
            length: 60,
            captured,
            kind: EventKind::Drop as u8,
            reason: Reason::NoLocalEndpoint as u8,
            program: Program::TcIngress as u8,
            ..Event::default()
        };
        for (word, bytes) in event.frame.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap());
        }
        let row = row(&event);
        assert_eq!(row.client, Some("198.51.100.7:41000".parse().unwrap()));
        let read: EventRow = serde_json::from_value(serde_json::to_value(&row).unwrap()).unwrap();
        assert_eq!(read.line(), row.line(), "another node reads it as it is written");
        assert!(
            row.line().ends_with("192.0.2.12:80/tcp      no_local_endpoint (tc_ingress)\n"),
            "{}",
            row.line()
        );
        assert!(row.line().contains(" - "), "no Service is known: {}", row.line());
    }

    #[test]
    fn a_drop_of_the_kernel_shows_its_function_and_the_device_if_it_is_of_this_network_namespace() {
        let mut packet = Vec::new();
        etherparse::PacketBuilder::ipv4([198, 51, 100, 7], [10, 1, 0, 1], 64)
            .tcp(41000, 8080, 1, 1000)
            .write(&mut packet, &[0; 200])
            .unwrap();
        packet.truncate(128);
        let drop = KernelDropView {
            at: 5_000_000_000,
            reason: "NETFILTER_DROP".to_owned(),
            function: "nft_do_chain".to_owned(),
            place: 1,
            device: 1,
            namespace: 7,
            packet,
        };
        let row = |namespace| EventRow::of_kernel(&drop, "shop/web:http", &clock(), namespace);
        assert_eq!(row(7).length, 240);
        let start = "03:04:05.000  kernel_drop  shop/web:http          198.51.100.7:41000     10.1.0.1:8080/tcp      ";
        assert_eq!(row(7).line(), format!("{start}NETFILTER_DROP (nft_do_chain, lo)\n"));
        assert_eq!(
            row(8).line(),
            format!("{start}NETFILTER_DROP (nft_do_chain, device 1 of network namespace 7)\n")
        );
        let drop = KernelDropView { function: String::new(), namespace: 0, ..drop };
        let row = EventRow::of_kernel(&drop, "", &clock(), 8);
        assert!(row.line().ends_with("NETFILTER_DROP (kernel)\n"), "{}", row.line());
    }

    #[test]
    fn a_refused_socket_has_no_client() {
        let event = Event {
            destination: mapped([10, 96, 0, 9]),
            destination_port: 443_u16.to_be(),
            protocol: 6,
            program: SOCKET,
            reason: Reason::NoEndpoint as u8,
            ..Event::default()
        };
        let row = row(&event);
        assert_eq!((row.client, &*row.program, &*row.reason), (None, "socket", "no_endpoint"));
        assert!(
            row.line().ends_with("-                      10.96.0.9:443/tcp      no_endpoint (socket)\n"),
            "{}",
            row.line()
        );
    }
}
