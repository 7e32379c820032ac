//! Returns free heap memory to the kernel after work that takes much of it for a moment.

/// Returns free memory to the kernel.
///
/// glibc keeps the memory that another thread freed. After a listing that is an eighth of the
/// agent's memory.
#[cfg(target_env = "gnu")]
pub fn give_back() {
    // SAFETY: malloc_trim(3) touches only glibc's own heaps, under their locks.
    unsafe { libc::malloc_trim(0) };
}

/// Does nothing: other C libraries return free memory themselves.
#[cfg(not(target_env = "gnu"))]
pub fn give_back() {}
