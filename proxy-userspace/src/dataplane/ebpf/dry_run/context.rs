//! The context of a test run: the kernel's `struct xdp_md` or `struct __sk_buff`.

use proxy_common::verdict::Program;

/// Size of `struct __sk_buff`, and offsets of the fields that a test run may set.
const SK_BUFF_BYTES: usize = 192;
const SK_BUFF_MARK: usize = 8;
const SK_BUFF_INGRESS_IFINDEX: usize = 36;
const SK_BUFF_IFINDEX: usize = 40;

/// The context of a frame.
#[derive(Clone, Debug)]
pub struct Context {
    bytes: Vec<u8>,
    is_xdp: bool,
}

impl Context {
    /// Returns the context of a frame of `length` bytes that comes in by a device.
    pub fn new(program: Program, device: u32, length: usize) -> Self {
        let is_xdp = program == Program::XdpIngress;
        if is_xdp {
            // data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex.
            let words = [0, u32::try_from(length).unwrap_or(u32::MAX), 0, device, 0, 0];
            return Self { bytes: words.into_iter().flat_map(u32::to_ne_bytes).collect(), is_xdp };
        }
        Self::of_skb(device, device)
    }

    /// Returns the context of a frame in TC at a device, which it came in by or not.
    pub fn of_skb(device: u32, came_in_by: u32) -> Self {
        let mut context = Self { bytes: vec![0; SK_BUFF_BYTES], is_xdp: false };
        context.set(SK_BUFF_INGRESS_IFINDEX, came_in_by);
        context.set(SK_BUFF_IFINDEX, device);
        context
    }

    /// Returns the context as the kernel reads it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the room for the context that the kernel writes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the length of the metadata that XDP put in front of the frame: the context's `data`.
    pub fn metadata(&self) -> usize {
        if self.is_xdp { usize::try_from(self.word(0)).unwrap_or(0) } else { 0 }
    }

    /// Returns the mark of a packet in TC; 0 for XDP.
    pub fn mark(&self) -> u32 {
        if self.is_xdp { 0 } else { self.word(SK_BUFF_MARK) }
    }

    fn set(&mut self, at: usize, value: u32) {
        if let Some(field) = self.bytes.get_mut(at..at + size_of::<u32>()) {
            field.copy_from_slice(&value.to_ne_bytes());
        }
    }

    fn word(&self, at: usize) -> u32 {
        let field = self.bytes.get(at..).and_then(|rest| rest.first_chunk());
        field.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }
}
