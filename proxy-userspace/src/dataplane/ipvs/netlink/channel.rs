//! A netlink socket: one request, all of its answer.

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// A socket that waits for each answer. The kernel answers within the system call that asks, so it never waits long.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    sequence: u32,
    /// Room for one datagram of answers, used again and again.
    received: Vec<u8>,
}

/// The kernel fills no larger datagram than this, whatever room there is.
const LARGEST_ANSWER: usize = 32 * 1024;

impl Channel {
    /// Opens a socket of a family, `NETLINK_*`.
    pub fn open(family: isize) -> io::Result<Self> {
        let mut socket = Socket::new(family)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, received: Vec::with_capacity(LARGEST_ANSWER) })
    }

    /// Asks for something to be done. `flags` are those beside `NLM_F_REQUEST` and `NLM_F_ACK`.
    pub fn act<M>(&mut self, message: M, flags: u16) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.exchange(message, NLM_F_ACK | flags).map(drop)
    }

    /// Asks for one answer.
    pub fn get<M>(&mut self, message: M) -> io::Result<Option<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        Ok(self.exchange(message, NLM_F_ACK)?.pop())
    }

    /// Asks for a list.
    pub fn dump<M>(&mut self, message: M) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.exchange(message, NLM_F_DUMP)
    }

    fn exchange<M>(&mut self, message: M, flags: u16) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            self.received.clear();
            self.received.reserve(LARGEST_ANSWER);
            let length = self.socket.recv(&mut self.received, libc::MSG_TRUNC)?;
            if length > self.received.len() {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "an answer is larger than any should be",
                ));
            }
            if read(&self.received, self.sequence, &mut answers)? == Progress::Complete {
                return Ok(answers);
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Partial,
    Complete,
}

/// Takes the messages of one datagram, as far as they answer the request `sequence`.
fn read<M>(datagram: &[u8], sequence: u32, answers: &mut Vec<M>) -> io::Result<Progress>
where
    M: NetlinkDeserializable + Debug,
{
    let mut rest = datagram;
    while !rest.is_empty() {
        let message = NetlinkMessage::<M>::deserialize(rest).map_err(|error| malformed(&error))?;
        let length = (message.header.length as usize).next_multiple_of(4);
        rest = rest.get(length..).unwrap_or_default();
        if message.header.sequence_number != sequence {
            continue;
        }
        match message.payload {
            NetlinkPayload::InnerMessage(answer) => answers.push(answer),
            NetlinkPayload::Error(error) => match error.code {
                None => return Ok(Progress::Complete),
                Some(code) => return Err(io::Error::from_raw_os_error(code.get().saturating_neg())),
            },
            NetlinkPayload::Done(done) if done.code < 0 => {
                return Err(io::Error::from_raw_os_error(done.code.saturating_neg()));
            }
            NetlinkPayload::Done(_) => return Ok(Progress::Complete),
            _ => {}
        }
    }
    Ok(Progress::Partial)
}

fn malformed(error: &DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
