//! The rules of a slot: they let a DSR director do without flow entries where nothing changed, and cut nothing where
//! something did.
//!
//! While the bit is clear, all connections of the slot belong to its current owner. While it is set, those that have a
//! flow entry belong to the entry's backend, all others to the settled owner. Programs (rules 1, 3, 6), plan (2, 4) and
//! collector (5) take them from here, and so does the simulation that tests them.

use crate::backend::{BACKEND_READY, BACKEND_SERVING};
use crate::selection::{BackendRef, Slot};

/// What a packet is to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It opens a TCP connection.
    Opening,
    /// It belongs to a TCP connection that exists already.
    Midstream,
    /// A datagram: nobody can tell.
    Datagram,
}

/// How long ago a slot changed its current owner last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastChange {
    /// A connection may have been silent ever since and live.
    Recent,
    /// Longer than the established time-out.
    Old,
}

impl Role {
    /// Whether a connection goes on with the backend of its flow entry, which exists and has these `BACKEND_*` bits. A TCP
    /// connection is ended by its pod, or lives on; datagrams would be sent to one that serves no more for as long as their
    /// client sends.
    #[inline(always)]
    #[must_use]
    pub const fn keeps(self, flags: u8) -> bool {
        !matches!(self, Self::Datagram) || flags & BACKEND_SERVING != 0
    }
}

impl Slot {
    /// Rules 2 and 4: the word after `next` becomes the current owner; nobody does while the list is empty.
    ///
    /// `exists` says whether a backend is still in an EndpointSlice in any condition. While the bit is set,
    /// a settled owner that exists is not replaced; a settled owner that is gone becomes the current one and
    /// the bit stays.
    #[must_use]
    pub fn change_owner(self, next: BackendRef, exists: impl Fn(BackendRef) -> bool) -> Self {
        let current = self.current();
        if self.0 == 0 {
            return Self::settled_on(next);
        }
        if !self.is_unsettled() {
            return match (current == next, exists(current)) {
                (true, _) => self,
                (false, true) => Self::unsettled(next, current),
                (false, false) => Self::unsettled(next, next),
            };
        }
        let settled = self.settled();
        if exists(settled) { Self::unsettled(next, settled) } else { Self::unsettled(next, next) }
    }

    /// Rules 1 and 3: who gets a packet that has no flow entry. `flags` tells the `BACKEND_*` bits of a backend that exists.
    #[inline(always)]
    pub fn owner(self, role: Role, flags: impl FnOnce(BackendRef) -> Option<u8>) -> BackendRef {
        if !self.is_unsettled() || matches!(role, Role::Opening) {
            return self.current();
        }
        let Some(flags) = flags(self.settled()) else {
            return self.current();
        };
        // A datagram may as well open a new exchange: it stays with an owner that is leaving only while that is Ready.
        if matches!(role, Role::Midstream) || flags & BACKEND_READY != 0 {
            self.settled()
        } else {
            self.current()
        }
    }

    /// Rule 5: the word after a round of the collector in which no flow entry of the slot named another living backend than
    /// the current owner.
    ///
    /// It takes two rounds where a settled owner lives that nobody was heard of for so long. The bit is cleared only where
    /// every entry that a program makes meanwhile, however late, names the current owner: so the settled owner has to be
    /// that first.
    #[must_use]
    pub fn settle(self, last_change: LastChange) -> Self {
        if !self.is_unsettled() {
            return self;
        }
        match (self.settled().0 == self.current().0, last_change) {
            (true, _) => Self::settled_on(self.current()),
            (false, LastChange::Old) => Self::unsettled(self.current(), self.current()),
            (false, LastChange::Recent) => self,
        }
    }

    /// Rule 6: who gets a packet that came in encapsulated for the backend `hinted` and has no flow entry, if it may still
    /// be sent on. A connection of `hinted` that began after the slot's last change has an entry on this node; so this one is
    /// older, and its director did not know: it gets to the slot's other owner, or its only one, where that exists. Directors that saw other
    /// changes before agree on the current owner, so a settled one that is not this slot's has the same other owner.
    #[inline(always)]
    pub fn second_chance(
        self,
        hinted: BackendRef,
        role: Role,
        exists: impl FnOnce(BackendRef) -> bool,
    ) -> BackendRef {
        if !matches!(role, Role::Midstream) {
            return hinted;
        }
        let other = if self.current().0 == hinted.0 { self.settled() } else { self.current() };
        if exists(other) { other } else { hinted }
    }

    /// Rule 6 where this node has nobody by the name of the packet's hint, and the packet no flow entry: an endpoint that is
    /// gone, which its director still takes for the slot's settled owner. A connection of that one is lost; all others that
    /// the director knows of are the current owner's, on which both agree.
    #[inline(always)]
    pub fn owner_instead(self, role: Role, flags: impl FnOnce(BackendRef) -> Option<u8>) -> BackendRef {
        let is_known = matches!(role, Role::Midstream) && !self.current().is_none();
        if is_known { self.current() } else { self.owner(role, flags) }
    }

    /// Whether a backend is one of the two owners.
    #[inline(always)]
    #[must_use]
    pub const fn is_owned_by(self, backend: BackendRef) -> bool {
        self.current().0 == backend.0 || self.settled().0 == backend.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BackendRef = BackendRef::new(7, 3);
    const B: BackendRef = BackendRef::new(0x00ab_cdef, 127);
    const C: BackendRef = BackendRef::new(9, 1);

    #[test]
    fn a_first_owner_is_settled_at_once() {
        assert_eq!(Slot::default().change_owner(A, |_| true), Slot::settled_on(A));
    }

    #[test]
    fn a_settled_owner_that_exists_is_not_replaced() {
        let slot = Slot::settled_on(A).change_owner(B, |_| true);
        assert_eq!(slot, Slot::unsettled(B, A));
        assert_eq!(slot.change_owner(C, |_| true), Slot::unsettled(C, A));
        assert_eq!(slot.change_owner(C, |owner| owner != A), Slot::unsettled(C, C));
        assert_eq!(slot.change_owner(A, |_| true), Slot::unsettled(A, A), "back home: the bit stays");
    }

    #[test]
    fn an_owner_that_is_gone_leaves_the_slot_unsettled() {
        assert_eq!(Slot::settled_on(A).change_owner(B, |owner| owner != A), Slot::unsettled(B, B));
    }

    #[test]
    fn a_slot_without_a_current_owner_remembers_the_settled_one() {
        let slot = Slot::settled_on(A).change_owner(BackendRef::NONE, |_| true);
        assert_eq!(slot, Slot::unsettled(BackendRef::NONE, A));
        assert_eq!(slot.owner(Role::Midstream, |_| Some(0)), A);
        assert!(slot.owner(Role::Opening, |_| Some(0)).is_none());
        assert_eq!(slot.change_owner(B, |_| true), Slot::unsettled(B, A));
        assert_eq!(slot.change_owner(B, |_| false), Slot::unsettled(B, B));
        let nobody = slot.change_owner(BackendRef::NONE, |_| false);
        assert_eq!(nobody.settle(LastChange::Recent), Slot::default());
    }

    #[test]
    fn a_slot_settles_once_nobody_can_be_left_to_another_owner() {
        for last_change in [LastChange::Recent, LastChange::Old] {
            assert_eq!(Slot::unsettled(A, A).settle(last_change), Slot::settled_on(A));
            assert_eq!(Slot::settled_on(A).settle(last_change), Slot::settled_on(A));
        }
        let slot = Slot::unsettled(B, A);
        assert_eq!(slot.settle(LastChange::Recent), slot, "connections may be silent");
        assert_eq!(slot.settle(LastChange::Old), Slot::unsettled(B, B), "the bit stays for another round");
    }

    #[test]
    fn datagrams_stay_with_a_settled_owner_only_while_it_is_ready() {
        let slot = Slot::unsettled(B, A);
        assert_eq!(slot.owner(Role::Datagram, |_| Some(BACKEND_READY)), A);
        assert_eq!(slot.owner(Role::Datagram, |_| Some(BACKEND_SERVING)), B);
        assert_eq!(slot.owner(Role::Midstream, |_| Some(0)), A);
        assert_eq!(slot.owner(Role::Midstream, |_| None), B);
        assert_eq!(slot.owner(Role::Opening, |_| Some(BACKEND_READY)), B);
        assert!(Role::Midstream.keeps(0) && Role::Opening.keeps(0) && !Role::Datagram.keeps(BACKEND_READY));
    }

    #[test]
    fn what_is_for_an_endpoint_that_is_gone_is_the_current_owners() {
        let slot = Slot::unsettled(B, A);
        assert_eq!(slot.owner_instead(Role::Midstream, |_| Some(0)), B);
        assert_eq!(slot.owner_instead(Role::Opening, |_| Some(0)), B);
        assert_eq!(slot.owner_instead(Role::Datagram, |_| Some(BACKEND_READY)), A);
        assert_eq!(Slot::unsettled(BackendRef::NONE, A).owner_instead(Role::Midstream, |_| Some(0)), A);
    }

    #[test]
    fn only_a_connection_of_an_unsettled_slot_gets_a_second_chance() {
        let slot = Slot::unsettled(B, A);
        assert_eq!(slot.second_chance(B, Role::Midstream, |_| true), A);
        assert_eq!(slot.second_chance(A, Role::Midstream, |_| true), B);
        assert_eq!(slot.second_chance(B, Role::Midstream, |_| false), B);
        assert_eq!(
            slot.second_chance(C, Role::Midstream, |_| true),
            B,
            "its director knows another settled owner"
        );
        assert_eq!(slot.second_chance(B, Role::Opening, |_| true), B);
        assert_eq!(Slot::settled_on(B).second_chance(B, Role::Midstream, |_| true), B);
        assert_eq!(
            Slot::settled_on(B).second_chance(A, Role::Midstream, |_| true),
            B,
            "its director has not heard so far that the slot is settled"
        );
    }
}
