//! Access to a frame in a socket buffer, which need not be linear.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::{bpf_skb_load_bytes, bpf_skb_pull_data};
use aya_ebpf::programs::TcContext;
use proxy_common::kernel_drop::{TOLD_ALREADY, TOLD_ALREADY_WORD};

use crate::header::Wire;

/// A frame with an Ethernet header.
#[derive(Clone, Copy)]
pub struct Skb {
    context: *mut __sk_buff,
}

/// The tag that the kernel took out of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tag {
    /// None.
    Absent,
    /// A priority only (VLAN 0): the frame is the device's own (IEEE 802.1Q, section 6.8).
    Priority,
    /// That of a VLAN.
    Vlan,
}

impl Skb {
    /// Wraps the program's context.
    #[inline(always)]
    pub fn new(context: &TcContext) -> Self {
        Self { context: context.skb.skb }
    }

    /// The index of the device.
    #[inline(always)]
    pub fn device(self) -> u32 {
        // SAFETY: the context is valid for the program's run.
        unsafe { (*self.context).ifindex }
    }

    /// The index of the device that the frame came in by; 0 for a frame of this node.
    #[inline(always)]
    pub fn came_in_by(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.context).ingress_ifindex }
    }

    /// Bytes of the frame.
    #[inline(always)]
    pub fn length(self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.context).len }
    }

    /// Lets `millrace monitor --kernel` know that the drop of this frame is told already.
    #[inline(always)]
    pub fn set_told(self) {
        // SAFETY: as above. The index is in the array.
        unsafe { (*self.context).cb[TOLD_ALREADY_WORD] = TOLD_ALREADY };
    }

    /// Whether the frame is still to be cut into segments.
    #[inline(always)]
    pub fn has_segments(self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.context).gso_size != 0 }
    }

    /// The tag that the kernel took out of the frame.
    #[inline(always)]
    pub fn tag(self) -> Tag {
        const VLAN: u32 = 0xfff;
        // SAFETY: as above.
        match unsafe { ((*self.context).vlan_present, (*self.context).vlan_tci & VLAN) } {
            (0, _) => Tag::Absent,
            (_, 0) => Tag::Priority,
            _ => Tag::Vlan,
        }
    }

    /// Makes the first bytes linear. All packet pointers die.
    #[inline(always)]
    pub fn pull(self, bytes: u32) {
        // SAFETY: as above.
        let (start, end) = unsafe { ((*self.context).data as usize, (*self.context).data_end as usize) };
        if start + bytes as usize > end {
            make_linear(self.context, bytes);
        }
    }

    /// The bytes at a constant offset, if they are linear.
    #[inline(always)]
    pub fn at<T: Wire>(self, offset: usize) -> Option<*const T> {
        // SAFETY: as above.
        let (start, end) = unsafe { ((*self.context).data as usize, (*self.context).data_end as usize) };
        if start + offset + size_of::<T>() > end {
            return None;
        }
        Some((start + offset) as *const T)
    }

    /// Copies the bytes at any offset, linear or not.
    #[inline(always)]
    pub fn load<T: Wire>(self, offset: u32) -> Option<T> {
        let mut room = MaybeUninit::<T>::uninit();
        let (context, to) = (self.context.cast_const().cast(), room.as_mut_ptr().cast());
        // SAFETY: the context is the kernel's, and the room has that many bytes.
        if unsafe { bpf_skb_load_bytes(context, offset, to, size_of::<T>() as u32) } != 0 {
            return None;
        }
        // SAFETY: the helper has written all bytes, and any bytes are a `T`.
        Some(unsafe { room.assume_init() })
    }
}

/// Not inlined: the verifier would walk everything behind it once for each way through it.
#[inline(never)]
fn make_linear(context: *mut __sk_buff, bytes: u32) {
    // SAFETY: the context is valid for the program's run.
    let length = unsafe { (*context).len };
    let wanted = if bytes < length { bytes } else { length };
    // A failure leaves less to look at, which `at` finds out.
    // SAFETY: the context is the kernel's; packet pointers are looked up again afterwards.
    unsafe { bpf_skb_pull_data(context, wanted) };
}
