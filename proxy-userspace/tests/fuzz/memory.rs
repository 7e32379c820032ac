//! The memory that a thread takes, to find input that makes the code take without bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Write as _, stderr};

/// Bytes that end the process at once, with the seed: the machine would not survive more.
const MOST: isize = 4 << 30;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with counts for each thread.
struct Counting;

/// Sets the seed of the thread's input, for the message of a process that takes too much.
pub fn set_seed(seed: u64) {
    SEED.set(seed);
}

/// Returns the most bytes that the thread had at one time during the work, besides those from before.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let done = work();
    (done, usize::try_from(PEAK.get() - before).unwrap_or(0))
}

fn count(bytes: isize) {
    let live = LIVE.get() + bytes;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
    if live > MOST && SEED.get() != 0 {
        let seed = SEED.replace(0);
        let _ = writeln!(stderr(), "MILLRACE_SEED={seed}: the input takes more than {MOST} bytes");
        std::process::abort();
    }
}

fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: every call goes to the system's allocator with the caller's arguments, and the counts do not
// allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller vouches for the layout.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: the caller vouches for the block and its layout.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(signed(size) - signed(layout.size()));
        // SAFETY: the caller vouches for the block, its layout and the size.
        unsafe { System.realloc(block, layout, size) }
    }
}

#[test]
fn the_peak_counts_what_is_given_back_meanwhile() {
    let (kept, peak) = peak_of(|| {
        drop(vec![0_u8; 1 << 20]);
        vec![0_u8; 1 << 10]
    });
    assert!((1 << 20..2 << 20).contains(&peak), "{peak}");
    assert_eq!(kept.len(), 1 << 10);
}
