//! The frame to explain.

use std::net::{IpAddr, SocketAddr};

use clap::{Args, ValueEnum};
use etherparse::{IpFragOffset, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder};
use proxy_common::sctp::{ABORT, DATA, INIT, INIT_ACK, SHUTDOWN_ACK};

use crate::cli::error::CliError;
use crate::config::{ConfigError, Refused};

/// Addresses of documentation (RFC 7042): a sender, and a receiver that is no group.
const MACS: [[u8; 6]; 2] = [[0x00, 0x00, 0x5e, 0x00, 0x53, 0x01], [0x00, 0x00, 0x5e, 0x00, 0x53, 0x02]];
const ETHERNET: usize = 14;
const HOP_LIMIT: u8 = 64;

/// The properties of the packet beside its addresses.
#[derive(Args, Clone, Debug)]
pub struct FrameArgs {
    /// Protocol [default: that of the Service's port, else tcp]
    #[arg(long, value_name = "PROTOCOL", value_enum)]
    pub proto: Option<Protocol>,
    /// TCP flags: any of S, A, F and R; for SCTP the chunk of the same meaning
    #[arg(long, value_name = "FLAGS", default_value = "S", value_parser = flags)]
    flags: Flags,
    /// Bytes of the IP packet [default: headers alone]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(28..))]
    size: Option<u16>,
    /// Forbid routers to cut the IPv4 packet
    #[arg(long)]
    df: bool,
}

/// A protocol of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// Returns the protocol by its name in Services.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Tcp, Self::Udp, Self::Sctp].into_iter().find(|protocol| protocol.name() == name)
    }

    /// Returns the number in an IP header.
    pub const fn number(self) -> u8 {
        match self {
            Self::Tcp => IpNumber::TCP.0,
            Self::Udp => IpNumber::UDP.0,
            Self::Sctp => IpNumber::SCTP.0,
        }
    }

    /// Returns the name in Services.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

/// A TCP flag, by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    Syn,
    Fin,
    Rst,
    Ack,
}

/// The flags of a TCP packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Flags(Vec<Flag>);

fn flags(text: &str) -> Result<Flags, Refused> {
    let flag = |letter: char| match letter {
        'S' => Ok(Flag::Syn),
        'A' => Ok(Flag::Ack),
        'F' => Ok(Flag::Fin),
        'R' => Ok(Flag::Rst),
        _ => Err(Refused::new(text, "letters of S (SYN), A (ACK), F (FIN) and R (RST)")),
    };
    text.chars().map(flag).collect::<Result<_, _>>().map(Flags)
}

impl Flags {
    fn has(&self, flag: Flag) -> bool {
        self.0.contains(&flag)
    }

    fn names(&self) -> String {
        let names = [(Flag::Syn, "SYN"), (Flag::Fin, "FIN"), (Flag::Rst, "RST"), (Flag::Ack, "ACK")];
        names
            .into_iter()
            .filter(|(flag, _)| self.has(*flag))
            .map(|(_, name)| name)
            .collect::<Vec<_>>()
            .join("+")
    }

    /// Returns the SCTP chunk of the same meaning.
    fn chunk(&self) -> u8 {
        match (self.has(Flag::Syn), self.has(Flag::Ack)) {
            _ if self.has(Flag::Rst) => ABORT,
            (true, false) => INIT,
            (true, true) => INIT_ACK,
            _ if self.has(Flag::Fin) => SHUTDOWN_ACK,
            _ => DATA,
        }
    }
}

/// A frame with an Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The sender.
    pub from: SocketAddr,
    /// The receiver.
    pub to: SocketAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Names of the flags; empty for UDP.
    pub flags: String,
}

impl Frame {
    /// Bytes of the IP packet.
    pub const fn size(&self) -> usize {
        self.bytes.len() - ETHERNET
    }
}

impl FrameArgs {
    /// Builds the frame of a client.
    pub fn build(&self, from: SocketAddr, to: SocketAddr, protocol: Protocol) -> Result<Frame, CliError> {
        let shortest = self.with_payload(from, to, protocol, 0)?;
        let flags = match protocol {
            Protocol::Udp => String::new(),
            Protocol::Tcp | Protocol::Sctp => self.flags.names(),
        };
        let bare = shortest.len() - ETHERNET;
        let bytes = match self.size.map(usize::from) {
            None => shortest,
            Some(size) if size >= bare => self.with_payload(from, to, protocol, size - bare)?,
            Some(size) => {
                let message =
                    Refused::new(&size.to_string(), format_args!("{bare} or more here")).to_string();
                return Err(ConfigError { origin: "--size".to_owned(), message }.into());
            }
        };
        Ok(Frame { from, to, protocol, bytes, flags })
    }

    fn with_payload(
        &self,
        from: SocketAddr,
        to: SocketAddr,
        protocol: Protocol,
        payload: usize,
    ) -> Result<Vec<u8>, CliError> {
        let ip = self.ip_headers(from.ip(), to.ip())?;
        let [source, destination] = MACS;
        let builder = PacketBuilder::ethernet2(source, destination).ip(ip);
        let (payload, mut bytes) = (vec![0; payload], Vec::new());
        let written = match protocol {
            Protocol::Udp => builder.udp(from.port(), to.port()).write(&mut bytes, &payload),
            Protocol::Tcp => {
                let mut tcp = builder.tcp(from.port(), to.port(), 1, 65535);
                tcp = if self.flags.has(Flag::Syn) { tcp.syn() } else { tcp };
                tcp = if self.flags.has(Flag::Fin) { tcp.fin() } else { tcp };
                tcp = if self.flags.has(Flag::Rst) { tcp.rst() } else { tcp };
                tcp = if self.flags.has(Flag::Ack) { tcp.ack(1) } else { tcp };
                tcp.write(&mut bytes, &payload)
            }
            Protocol::Sctp => {
                let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
                // No checksum (RFC 9653), and one chunk without content.
                let packet = [ports, vec![0; 8], vec![self.flags.chunk(), 0, 0, 4], payload].concat();
                builder.write(&mut bytes, IpNumber::SCTP, &packet)
            }
        };
        written.map_err(|error| CliError::Io(std::io::Error::other(error)))?;
        Ok(bytes)
    }

    fn ip_headers(&self, from: IpAddr, to: IpAddr) -> Result<IpHeaders, CliError> {
        match (from, to) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header {
                    dont_fragment: self.df,
                    more_fragments: false,
                    fragment_offset: IpFragOffset::ZERO,
                    time_to_live: HOP_LIMIT,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv4Header::default()
                };
                Ok(IpHeaders::Ipv4(header, etherparse::Ipv4Extensions::default()))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    flow_label: Ipv6FlowLabel::ZERO,
                    hop_limit: HOP_LIMIT,
                    source: source.octets(),
                    destination: destination.octets(),
                    ..Ipv6Header::default()
                };
                Ok(IpHeaders::Ipv6(header, etherparse::Ipv6Extensions::default()))
            }
            _ => {
                let message =
                    Refused::new(&from.to_string(), "an address of the same family as TO").to_string();
                Err(ConfigError { origin: "FROM".to_owned(), message }.into())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{LaxSlicedPacket, TransportSlice};

    use super::*;
    use crate::cli::argument::parsed;

    fn built(line: &str, to: &str, protocol: Protocol) -> Result<Frame, String> {
        let from = if to.starts_with('[') { "[2001:db8::7]:40000" } else { "198.51.100.7:40000" };
        let frame = parsed::<FrameArgs>(line).build(from.parse().unwrap(), to.parse().unwrap(), protocol);
        frame.map_err(|error| error.to_string())
    }

    #[test]
    fn a_frame_has_the_size_and_the_flags_that_were_asked_for() {
        let frame = built("--flags SA --size 1500 --df", "192.0.2.1:80", Protocol::Tcp).unwrap();
        assert_eq!((frame.size(), frame.flags.as_str()), (1500, "SYN+ACK"));
        let packet = LaxSlicedPacket::from_ethernet(&frame.bytes).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = packet.transport else { panic!("{packet:?}") };
        assert!(tcp.syn() && tcp.ack() && !tcp.rst());
        assert_eq!(frame.bytes[20] & 0x40, 0x40, "DF");
        let frame = built("", "[2001:db8::1]:53", Protocol::Udp).unwrap();
        assert_eq!((frame.size(), frame.flags.as_str()), (48, ""));
        let frame = built("", "192.0.2.1:80", Protocol::Sctp).unwrap();
        assert_eq!((frame.size(), frame.bytes[46]), (36, INIT));
        assert_eq!(frame.bytes[20] & 0x40, 0, "routers may cut it");
    }

    #[test]
    fn a_size_below_the_headers_is_refused() {
        let refused = built("--size 30", "192.0.2.1:80", Protocol::Tcp).unwrap_err();
        assert_eq!(refused, "--size: \"30\" is not accepted; takes 40 or more here");
        assert!(flags("SX").unwrap_err().to_string().contains("letters of S (SYN)"));
    }
}
