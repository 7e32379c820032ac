//! Array maps of u64 words, mapped into memory.

use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The words of an array map with `BPF_F_MMAPABLE`. The programs see a store at once and
/// completely.
pub struct MappedArray {
    words: NonNull<AtomicU64>,
    length: u32,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only accessed atomically.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

/// The access to a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only: a store would be a fault.
    Read,
    /// Loads and stores.
    Write,
}

impl MappedArray {
    /// Maps an array of `length` words of eight bytes.
    pub fn new(map: BorrowedFd<'_>, length: u32, access: Access) -> io::Result<Self> {
        let bytes = bytes(length).ok_or(io::ErrorKind::InvalidInput)?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address of the kernel's choice; it does not touch memory in use.
        let words = unsafe { mmap(None, bytes, protection, MapFlags::MAP_SHARED, map, 0) }?;
        Ok(Self { words: words.cast(), length })
    }

    /// Returns the number of words.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.length
    }

    /// Returns a word; 0 outside the array.
    #[must_use]
    pub fn load(&self, index: u32) -> u64 {
        self.word(index).map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Stores a word; returns false outside the array.
    #[must_use]
    pub fn store(&self, index: u32, value: u64) -> bool {
        // Release: earlier stores, such as a slice before the word that names it, are visible
        // first.
        self.word(index).map(|word| word.store(value, Ordering::Release)).is_some()
    }

    /// Returns all words, in their order. One at a time takes ten times as long.
    pub fn all(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.words().iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Returns the number of words in use: those other than 0.
    pub fn used(&self) -> usize {
        self.all().filter(|word| *word != 0).count()
    }

    fn word(&self, index: u32) -> Option<&AtomicU64> {
        self.words().get(usize::try_from(index).ok()?)
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this length, page-aligned, as long as `self` lives; all access in this process is
        // atomic, and the kernel reads whole aligned words.
        unsafe { slice::from_raw_parts(self.words.as_ptr(), self.length as usize) }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        if let Some(bytes) = bytes(self.length) {
            // SAFETY: the mapping was made by `new` with this length, and no reference into it outlives `self`.
            let _ = unsafe { munmap(self.words.cast(), bytes.get()) };
        }
    }
}

impl fmt::Debug for MappedArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedArray").field("length", &self.length).finish_non_exhaustive()
    }
}

fn bytes(length: u32) -> Option<NonZeroUsize> {
    NonZeroUsize::new(usize::try_from(length).ok()?.checked_mul(size_of::<u64>())?)
}
