//! Frames for people: decoded, one line a header, and in hex.

use std::fmt::Write as _;
use std::sync::LazyLock;

use super::Frame;
use super::layer::{Layer, Mac, Sctp, SctpChecksum, Tcp, Udp, UdpChecksum, flag};

/// Returns the decoded frame, one line a header, and below it the bytes in hex, sixteen a line.
#[must_use]
pub fn describe(bytes: &[u8]) -> String {
    let mut text = match Frame::parse(bytes) {
        Ok(frame) => decoded(&frame),
        Err(error) => format!("  not parsed: {error}\n"),
    };
    for (index, row) in bytes.chunks(16).enumerate() {
        let hex: Vec<String> = row.chunks(2).map(hex).collect();
        let ascii: String = row.iter().map(|byte| printable(*byte)).collect();
        let _ = writeln!(text, "  {:04x}  {:<39}  {ascii}", index * 16, hex.join(" "));
    }
    text
}

/// Prints a frame under a label if `MILLRACE_VERBOSE=1` asks for it.
pub fn show_if_verbose(label: &str, bytes: &[u8]) {
    static VERBOSE: LazyLock<bool> =
        LazyLock::new(|| std::env::var_os("MILLRACE_VERBOSE").is_some_and(|value| value == "1"));
    if *VERBOSE {
        println!("{label}, {} bytes:\n{}", bytes.len(), describe(bytes));
    }
}

fn decoded(frame: &Frame) -> String {
    let mut text = format!("  Ethernet {} > {}", mac(frame.source_mac), mac(frame.destination_mac));
    if let Some(ethertype) = frame.ethertype {
        let _ = write!(text, " type {ethertype:#06x}");
    }
    text.push('\n');
    for layer in &frame.layers {
        let _ = writeln!(text, "  {}", line(layer));
    }
    let _ = writeln!(text, "  payload {} bytes, trailer {} bytes", frame.payload.len(), frame.trailer.len());
    text
}

fn line(layer: &Layer) -> String {
    match layer {
        Layer::Vlan(tag) => format!("VLAN {} (tag protocol {:#06x})", tag.control & 0xfff, tag.tag_protocol),
        Layer::Ipv4(ip) => format!(
            "IPv4 {} > {} ttl {} tos {} id {:#06x} df {} mf {} offset {} options {:02x?}{}",
            ip.source,
            ip.destination,
            ip.ttl,
            ip.tos,
            ip.id,
            u8::from(ip.dont_fragment),
            u8::from(ip.more_fragments),
            ip.fragment_offset,
            &ip.options[..],
            carries(ip.protocol),
        ),
        Layer::Ipv6(ip) => format!(
            "IPv6 {} > {} hop limit {} class {} flow label {:#07x}{}",
            ip.source,
            ip.destination,
            ip.hop_limit,
            ip.traffic_class,
            ip.flow_label,
            carries(ip.protocol),
        ),
        Layer::Extension(header) => {
            format!("extension {} body {:02x?}{}", header.kind, &header.body[..], carries(header.protocol))
        }
        Layer::Tcp(header) => tcp(header),
        Layer::Udp(Udp { source, destination, checksum }) => {
            let checksum = if *checksum == UdpChecksum::None { " without checksum" } else { "" };
            format!("UDP {source} > {destination}{checksum}")
        }
        Layer::Sctp(Sctp { source, destination, tag, chunk, checksum }) => {
            let checksum = if *checksum == SctpChecksum::None { " without checksum" } else { "" };
            format!("SCTP {source} > {destination} tag {tag:#x} chunk {chunk}{checksum}")
        }
        Layer::Icmp(header) => format!("ICMP type {} code {} {:02x?}", header.kind, header.code, header.rest),
    }
}

fn tcp(header: &Tcp) -> String {
    let names =
        [(flag::FIN, "FIN"), (flag::SYN, "SYN"), (flag::RST, "RST"), (flag::PSH, "PSH"), (flag::ACK, "ACK")];
    let flags: Vec<&str> =
        names.iter().filter(|(bit, _)| header.flags & bit != 0).map(|(_, name)| *name).collect();
    format!(
        "TCP {} > {} [{}] seq {} ack {} window {} options {:02x?}",
        header.source,
        header.destination,
        flags.join(" "),
        header.sequence,
        header.acknowledgement,
        header.window,
        &header.options[..],
    )
}

fn carries(protocol: Option<u8>) -> String {
    protocol.map(|number| format!(" protocol {number}")).unwrap_or_default()
}

fn mac(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn hex(pair: &[u8]) -> String {
    pair.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

const fn printable(byte: u8) -> char {
    if byte.is_ascii_graphic() { byte as char } else { '.' }
}
