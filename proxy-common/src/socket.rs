//! SOCK_REV4/6 and SOCK_TCP4/6: which frontend a socket's backend stands for.

use crate::layout::shared;

shared! {
    /// Key of SOCK_REV4/6 and SOCK_TCP4/6: a socket, and the backend that its calls were turned to.
    pub struct SocketKey<A> {
        /// The backend's address.
        pub address: A,
        /// The socket's cookie, as the kernel gives it out: the low word, then the high one.
        pub cookie: [u32; 2],
        /// The backend's port, network byte order.
        pub port: u16,
        /// IP protocol number.
        pub protocol: u16,
    }
}

shared! {
    /// Value of SOCK_REV4/6 and SOCK_TCP4/6. Written by the programs when a socket is connected or sends; the least recently
    /// used entry is evicted, and its socket sees the backend's own address.
    pub struct SocketFrontend<A> {
        /// The address the socket asked for.
        pub address: A,
        /// [`BackendRef`](crate::selection::BackendRef) of the backend.
        pub backend: u32,
        /// Low word of the cookie, as in the key: an LRU map may give an entry to another key while it is read.
        pub socket: u32,
        /// The port the socket asked for, network byte order.
        pub port: u16,
        /// Zero.
        pub reserved: u16,
    }
}

/// A cookie in the two words of a [`SocketKey`].
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
