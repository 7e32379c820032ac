//! SELECTION, written through a mapping as the agent does: ten thousand Maglev slices have forty
//! million slots.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;

use aya::maps::Map;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use proxy_common::selection::Slot;

use super::Bed;

/// Slots of a page. A mapping starts at a page.
const PAGE: usize = 4096;
const SLOTS_OF_A_PAGE: u32 = (PAGE / size_of::<u64>()) as u32;

impl Bed {
    /// Writes consecutive slots.
    pub(super) fn write_slots(&self, first: u32, slots: &[Slot]) {
        let Some(bytes) = NonZeroUsize::new(size_of_val(slots)) else { return };
        let page = first / SLOTS_OF_A_PAGE;
        let skipped = (first - page * SLOTS_OF_A_PAGE) as usize;
        let length = bytes.saturating_add(skipped * size_of::<u64>());
        let ebpf = self.ebpf();
        let Some(Map::Array(map)) = ebpf.map("SELECTION") else { panic!("SELECTION is an array") };
        let capacity = map.info().expect("SELECTION").max_entries();
        assert!(first as usize + slots.len() <= capacity as usize, "SELECTION has {capacity} slots");
        let offset = i64::from(page) * PAGE as i64;
        // SAFETY: the mapping is inside the map, whose size was checked, and is used only below.
        unsafe {
            let start = mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                map.fd().as_fd(),
                offset,
            )
            .expect("SELECTION can be mapped");
            let words = start.cast::<u64>().add(skipped);
            for (index, slot) in slots.iter().enumerate() {
                words.add(index).write_volatile(slot.0);
            }
            munmap(start, length.get()).expect("a mapping of this function");
        }
    }
}
