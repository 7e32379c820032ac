//! AFFINITY4/6: the last backend of each client (sessionAffinity ClientIP).

use crate::layout::shared;

/// Kind of [`AffinityKey`]: `client` is the client's address.
pub const AFFINITY_CLIENT: u32 = 0;
/// Kind of [`AffinityKey`]: `client` is the cookie of a network namespace of this node, its low
/// word first. IPv4 has room for the low word only (decision 84).
pub const AFFINITY_NAMESPACE: u32 = 1;

shared! {
    /// Key of AFFINITY4/6.
    pub struct AffinityKey<A> {
        /// The client, in the form that `kind` names.
        pub client: A,
        /// Service id of the Service port's Cluster list, or of its Local list if it has no other.
        /// A client so keeps its backend over all frontends of the port.
        pub service: u32,
        /// One of `AFFINITY_*`.
        pub kind: u32,
    }
}

shared! {
    /// Value of AFFINITY4/6. The programs write it when a connection is confirmed (decision 129).
    pub struct Affinity {
        /// [`BackendRef`](crate::selection::BackendRef) of the client's backend.
        pub backend: u32,
        /// The service id of the key. An LRU map may give an entry to another key while a program
        /// reads it, and a client must never get another Service's backend.
        pub service: u32,
        /// Monotonic seconds of the client's last new connection.
        pub last_used: u32,
    }
}

impl Affinity {
    /// Returns whether the affinity still holds at `now` for this Service, under a time-out in
    /// seconds.
    #[inline(always)]
    #[must_use]
    pub const fn holds(&self, service: u32, now: u32, timeout: u32) -> bool {
        // The clock of another CPU may be a tick ahead.
        let age = now.wrapping_sub(self.last_used);
        self.service == service && (age <= timeout || age > u32::MAX / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_affinity_holds_for_its_service_until_its_time_is_over() {
        let affinity = Affinity { backend: 7, service: 3, last_used: u32::MAX - 1 };
        assert!(affinity.holds(3, 8, 10), "the clock may wrap");
        assert!(!affinity.holds(3, 9, 10));
        assert!(!affinity.holds(4, 8, 10));
        assert!(affinity.holds(3, u32::MAX - 2, 10), "another CPU is a tick ahead");
    }
}
