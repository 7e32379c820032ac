//! SOCK_REV4/6 and SOCK_TCP4/6: the frontend that a socket asked for, by its backend.

use crate::layout::shared;

shared! {
    /// Key of SOCK_REV4/6 and SOCK_TCP4/6: a socket, and the backend that a hook directed it to.
    pub struct SocketKey<A> {
        /// The backend's address.
        pub address: A,
        /// The socket's cookie from the kernel: the low word, then the high one.
        pub cookie: [u32; 2],
        /// The backend's port, network byte order.
        pub port: u16,
        /// IP protocol number.
        pub protocol: u16,
    }
}

shared! {
    /// Value of SOCK_REV4/6 and SOCK_TCP4/6. The programs write it when a socket connects or sends.
    ///
    /// The map evicts the least recently used entry. The socket of that entry then sees the
    /// backend's own address.
    pub struct SocketFrontend<A> {
        /// The frontend's address.
        pub address: A,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend.
        pub backend: u32,
        /// Low word of the key's cookie: an LRU map may give an entry to another key while a
        /// program reads it.
        pub socket: u32,
        /// The frontend's port, network byte order.
        pub port: u16,
        /// Zero.
        pub reserved: u16,
    }
}

/// Splits a cookie into the two words of a [`SocketKey`].
#[inline(always)]
#[must_use]
pub const fn cookie_words(cookie: u64) -> [u32; 2] {
    [cookie as u32, (cookie >> 32) as u32]
}

#[cfg(test)]
mod tests {
    use super::cookie_words;

    #[test]
    fn the_low_word_of_a_cookie_comes_first() {
        assert_eq!(cookie_words(0x0000_0002_0000_0001), [1, 2]);
    }
}
