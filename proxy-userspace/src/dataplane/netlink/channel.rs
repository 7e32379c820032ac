//! A netlink socket for one request with its whole answer, or for many requests without answers.

use std::fmt::Debug;
use std::io;

use netlink_packet_core::{
    DecodeError, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use netlink_sys::{Socket, SocketAddr};

/// A socket that waits for each answer. The kernel answers within the system call of the request, so the wait
/// is short.
#[derive(Debug)]
pub struct Channel {
    socket: Socket,
    sequence: u32,
    /// A reused buffer for one datagram of answers.
    received: Vec<u8>,
}

/// The size of the kernel's largest datagram, however large the buffer is.
const LARGEST_ANSWER: usize = 32 * 1024;
/// The number of requests in one system call. The answers fit into a socket's buffer even if all fail.
const BATCH: usize = 64;

impl Channel {
    /// Opens a socket of a family, `NETLINK_*`.
    pub fn open(family: isize) -> io::Result<Self> {
        let mut socket = Socket::new(family)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0, received: Vec::with_capacity(LARGEST_ANSWER) })
    }

    /// Sends a request without an answer. `flags` are added to `NLM_F_REQUEST` and `NLM_F_ACK`.
    pub fn act<M>(&mut self, message: M, flags: u16) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.exchange(message, NLM_F_ACK | flags).map(drop)
    }

    /// Sends a request with at most one answer.
    pub fn get<M>(&mut self, message: M) -> io::Result<Option<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        Ok(self.exchange(message, NLM_F_ACK)?.pop())
    }

    /// Sends a request for a list.
    pub fn dump<M>(&mut self, message: M) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        self.exchange(message, NLM_F_DUMP)
    }

    /// Sends many independent requests. The kernel answers failed ones and the last of each batch, so a
    /// batch takes one system call each way.
    pub fn act_all<M>(&mut self, mut messages: Vec<M>, flags: u16) -> Vec<io::Result<()>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        let mut outcomes = Vec::with_capacity(messages.len());
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(BATCH));
            let batch = std::mem::replace(&mut messages, rest);
            let number = batch.len();
            match self.act_batch(batch, flags) {
                Ok(batch) => outcomes.extend(batch),
                // The kernel may have carried some out. All may be repeated.
                Err(error) => {
                    outcomes
                        .extend((0..number).map(|_| Err(io::Error::new(error.kind(), error.to_string()))));
                }
            }
        }
        outcomes
    }

    fn act_batch<M>(&mut self, batch: Vec<M>, flags: u16) -> io::Result<Vec<io::Result<()>>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        let mut outcomes: Vec<io::Result<()>> = batch.iter().map(|_| Ok(())).collect();
        let (first, last) = (self.sequence.wrapping_add(1), batch.len().saturating_sub(1));
        let mut bytes = Vec::new();
        for (index, message) in batch.into_iter().enumerate() {
            self.encode(&mut bytes, message, if index == last { NLM_F_ACK | flags } else { flags });
        }
        self.socket.send(&bytes, 0)?;
        loop {
            self.receive()?;
            for message in messages_in::<M>(&self.received) {
                let message = message?;
                let index = message.header.sequence_number.wrapping_sub(first) as usize;
                let NetlinkPayload::Error(error) = message.payload else { continue };
                if let (Some(outcome), Some(code)) = (outcomes.get_mut(index), error.code) {
                    *outcome = Err(io::Error::from_raw_os_error(code.get().saturating_neg()));
                }
                if index == last {
                    return Ok(outcomes);
                }
            }
        }
    }

    /// Sends requests that the kernel carries out all or not at all, between the two messages of `frame`. Each request has
    /// its flags.
    pub fn transact<M>(&mut self, frame: [M; 2], messages: Vec<(M, u16)>) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        let ([begin, end], mut bytes) = (frame, Vec::new());
        self.encode(&mut bytes, begin, 0);
        let (first, last) = (self.sequence, messages.len().saturating_sub(1));
        for (index, (message, flags)) in messages.into_iter().enumerate() {
            self.encode(&mut bytes, message, if index == last { NLM_F_ACK | flags } else { flags });
        }
        let last = self.sequence;
        self.encode(&mut bytes, end, 0);
        self.socket.send(&bytes, 0)?;
        let mut outcome = Ok(());
        loop {
            self.receive()?;
            for message in messages_in::<M>(&self.received) {
                let message = message?;
                let NetlinkPayload::Error(error) = message.payload else { continue };
                let number = message.header.sequence_number;
                if number.wrapping_sub(first) > last.wrapping_sub(first) {
                    continue;
                }
                if let (true, Some(code)) = (outcome.is_ok(), error.code) {
                    outcome = Err(io::Error::from_raw_os_error(code.get().saturating_neg()));
                }
                // A failure of the whole has the number of its beginning.
                if number == last || number == first {
                    return outcome;
                }
            }
        }
    }

    fn exchange<M>(&mut self, message: M, flags: u16) -> io::Result<Vec<M>>
    where
        M: NetlinkSerializable + NetlinkDeserializable + Debug,
    {
        let mut bytes = Vec::new();
        self.encode(&mut bytes, message, flags);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            self.receive()?;
            if read(&self.received, self.sequence, &mut answers)? == Progress::Complete {
                return Ok(answers);
            }
        }
    }

    /// Appends a request with a new sequence number.
    fn encode<M: NetlinkSerializable>(&mut self, bytes: &mut Vec<u8>, message: M, flags: u16) {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        request.finalize();
        let start = bytes.len();
        bytes.resize(start + request.buffer_len().next_multiple_of(4), 0);
        request.serialize(bytes.get_mut(start..).unwrap_or_default());
    }

    /// Waits for a datagram of answers.
    fn receive(&mut self) -> io::Result<()> {
        self.received.clear();
        self.received.reserve(LARGEST_ANSWER);
        let length = self.socket.recv(&mut self.received, libc::MSG_TRUNC)?;
        if length > self.received.len() {
            let message = format!("an answer of the kernel has {length} bytes, more than {LARGEST_ANSWER}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Partial,
    Complete,
}

/// Adds the messages of one datagram to `answers`, if they answer the request `sequence`.
fn read<M>(datagram: &[u8], sequence: u32, answers: &mut Vec<M>) -> io::Result<Progress>
where
    M: NetlinkDeserializable + Debug,
{
    for message in messages_in::<M>(datagram) {
        let message = message?;
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

/// Returns the messages of one datagram. A malformed message is the last.
fn messages_in<M>(datagram: &[u8]) -> impl Iterator<Item = io::Result<NetlinkMessage<M>>>
where
    M: NetlinkDeserializable + Debug,
{
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = NetlinkMessage::<M>::deserialize(rest).map_err(|error| malformed(&error));
        let length = message.as_ref().map_or(0, |message| message.header.length as usize);
        rest = if length == 0 { &[] } else { rest.get(length.next_multiple_of(4)..).unwrap_or_default() };
        Some(message)
    })
}

fn malformed(error: &DecodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}
