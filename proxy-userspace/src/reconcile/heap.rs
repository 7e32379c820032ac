//! Memory that a large piece of work needed for a moment.

/// Gives what is free back to the system. glibc keeps what another thread has freed in between, which after a listing
/// is an eighth of what the agent holds.
#[cfg(target_env = "gnu")]
pub fn give_back() {
    // SAFETY: it touches nothing but glibc's own heaps, under their own locks.
    unsafe { libc::malloc_trim(0) };
}

/// Other C libraries give it back by themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
