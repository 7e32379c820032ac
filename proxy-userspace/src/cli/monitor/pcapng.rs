//! Dropped packets as a stream of pcapng, for Wireshark, tshark and tcpdump.
//!
//! The format is that of draft-ietf-opsawg-pcapng. Sections "Section Header Block", "Interface Description Block",
//! "Enhanced Packet Block" and "Options" have the numbers.

use proxy_common::event::CAPTURED_BYTES;

use super::row::EventRow;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Readers learn the byte order by it.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// The section ends where the stream ends.
const LENGTH_UNKNOWN: u64 = u64::MAX;

const END_OF_OPTIONS: u16 = 0;
const COMMENT: u16 = 1;
const USER_APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const TIME_RESOLUTION: u16 = 9;
/// A tenth power: nanoseconds.
const NANOSECONDS: u8 = 9;

/// The types of the frames: LINKTYPE_ETHERNET, and LINKTYPE_RAW for a frame that begins with its IP header.
const ETHERNET: u16 = 1;
const RAW_IP: u16 = 101;

/// A stream that is being written.
#[derive(Debug, Default)]
pub struct Stream {
    /// The devices so far, and whether their frames begin with an IP header. The place is the interface's number.
    interfaces: Vec<(String, bool)>,
}

impl Stream {
    /// Returns the beginning of the stream.
    pub fn header() -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(BYTE_ORDER.to_le_bytes());
        body.extend(1_u16.to_le_bytes());
        body.extend(0_u16.to_le_bytes());
        body.extend(LENGTH_UNKNOWN.to_le_bytes());
        option(&mut body, USER_APPLICATION, concat!("millrace ", env!("CARGO_PKG_VERSION")).as_bytes());
        option(&mut body, END_OF_OPTIONS, &[]);
        block(SECTION_HEADER, &body)
    }

    /// Returns the blocks of a dropped packet: before the first one of a device comes the device's.
    pub fn packet(&mut self, row: &EventRow) -> Vec<u8> {
        let is_same = |known: &(String, bool)| known.0 == row.device && known.1 == row.is_bare;
        let (interface, mut blocks) = if let Some(known) = self.interfaces.iter().position(is_same) {
            (known, Vec::new())
        } else {
            self.interfaces.push((row.device.clone(), row.is_bare));
            (self.interfaces.len() - 1, description(row))
        };
        let captured = word(row.frame.len());
        // Before 1970 a clock is wrong, and after 2554 the field is full.
        let time = u64::try_from(row.time.as_nanosecond()).unwrap_or_default().to_le_bytes();
        let (low, high) = time.split_at(4);
        let mut body = Vec::new();
        body.extend(word(interface).to_le_bytes());
        body.extend(high);
        body.extend(low);
        body.extend(captured.to_le_bytes());
        body.extend(row.length.max(captured).to_le_bytes());
        body.extend(&row.frame);
        pad(&mut body);
        option(&mut body, COMMENT, comment(row).as_bytes());
        option(&mut body, END_OF_OPTIONS, &[]);
        blocks.extend(block(ENHANCED_PACKET, &body));
        blocks
    }
}

/// Returns the block of a packet's device.
fn description(row: &EventRow) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(if row.is_bare { RAW_IP } else { ETHERNET }.to_le_bytes());
    body.extend(0_u16.to_le_bytes());
    body.extend(word(CAPTURED_BYTES).to_le_bytes());
    option(&mut body, INTERFACE_NAME, row.device.as_bytes());
    option(&mut body, TIME_RESOLUTION, &[NANOSECONDS]);
    option(&mut body, END_OF_OPTIONS, &[]);
    block(INTERFACE_DESCRIPTION, &body)
}

/// Says why the packet was dropped, in the words of the table.
fn comment(row: &EventRow) -> String {
    let by = if row.function.is_empty() { &*row.program } else { &row.function };
    let why = format!("{} ({by})", row.reason);
    if row.service.is_empty() { why } else { format!("{why}, Service {}", row.service) }
}

/// Returns a block: its type, its length before and after, and its body.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = word(body.len() + 12).to_le_bytes();
    [&kind.to_le_bytes(), &length, body, &length].concat()
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
    body.extend(code.to_le_bytes());
    body.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_le_bytes());
    body.extend(value);
    pad(body);
}

/// Fills up to a multiple of four bytes: all that stands before a value in a block is one.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

fn word(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(device: &str, frame: &[u8]) -> EventRow {
        EventRow {
            time: "1970-01-01T00:00:05.000000007Z".parse().unwrap(),
            kind: "drop".into(),
            service: "shop/web:http".to_owned(),
            protocol: String::new(),
            client: None,
            frontend: None,
            backend: None,
            reason: "no_way".into(),
            program: "tc_ingress".into(),
            function: String::new(),
            device: device.to_owned(),
            length: 600,
            direction: "".into(),
            client_pod: String::new(),
            frontend_pod: String::new(),
            frame: frame.to_vec(),
            is_bare: false,
        }
    }

    #[test]
    fn the_stream_begins_with_a_section_of_unknown_length() {
        let name = concat!("millrace ", env!("CARGO_PKG_VERSION")).as_bytes();
        let option = [&[4, 0, u8::try_from(name.len()).unwrap(), 0], name].concat();
        let padded = option.len().next_multiple_of(4);
        let length = [u8::try_from(28 + padded + 4).unwrap(), 0, 0, 0];
        let mut wanted = vec![0x0a, 0x0d, 0x0d, 0x0a];
        wanted.extend(length);
        wanted.extend([0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0]);
        wanted.extend([0xff; 8]);
        wanted.extend(&option);
        wanted.resize(24 + padded, 0);
        wanted.extend([0, 0, 0, 0]);
        wanted.extend(length);
        assert_eq!(Stream::header(), wanted);
    }

    #[test]
    fn a_packet_follows_its_device_and_has_its_reason_as_a_comment() {
        let mut stream = Stream::default();
        let blocks = stream.packet(&row("eth0", &[1, 2, 3, 4, 5]));
        #[rustfmt::skip]
        let device = [
            1, 0, 0, 0, 40, 0, 0, 0,
            1, 0, 0, 0, 128, 0, 0, 0,
            2, 0, 4, 0, b'e', b't', b'h', b'0',
            9, 0, 1, 0, 9, 0, 0, 0,
            0, 0, 0, 0,
            40, 0, 0, 0,
        ];
        assert_eq!(blocks[..40], device);
        // 5,000,000,007 ns are 0x1_2a05f207. The comment has 42 bytes.
        #[rustfmt::skip]
        let before: [u8; 40] = [
            6, 0, 0, 0, 92, 0, 0, 0,
            0, 0, 0, 0,
            1, 0, 0, 0, 0x07, 0xf2, 0x05, 0x2a,
            5, 0, 0, 0, 0x58, 2, 0, 0,
            1, 2, 3, 4, 5, 0, 0, 0,
            1, 0, 42, 0,
        ];
        let wanted =
            [&before, "no_way (tc_ingress), Service shop/web:http".as_bytes(), &[0; 6], &[92, 0, 0, 0]];
        assert_eq!(blocks[40..], wanted.concat());
    }

    #[test]
    fn each_device_is_described_once_and_a_bare_frame_has_another_type() {
        let mut stream = Stream::default();
        let bare = EventRow { is_bare: true, ..row("tun0", &[0x45; 20]) };
        let lengths: Vec<usize> = [row("eth0", &[0; 60]), row("eth1", &[0; 60]), row("eth0", &[0; 60]), bare]
            .iter()
            .map(|row| stream.packet(row).len())
            .collect();
        assert_eq!(lengths[0], lengths[1]);
        assert_eq!(lengths[0] - lengths[2], 40);
        assert_eq!(stream.interfaces[2], ("tun0".to_owned(), true));
    }
}
