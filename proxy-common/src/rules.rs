//! The rules of a slot. A DSR director needs no flow entries where no slot changed, and cuts no
//! connection where one did.
//!
//! A slot has a current owner and a settled owner. While it is settled, all its connections belong
//! to the current owner. While it is unsettled, a connection with a flow entry belongs to the
//! entry's backend. A connection without one belongs to the settled owner.
//!
//! | Rule | Says | Applied by |
//! |---|---|---|
//! | 1, 3 | [who gets a packet](Slot::owner) without a flow entry | programs |
//! | 2, 4 | how a slot [changes its owner](Slot::change_owner) | plan |
//! | 5 | when a slot [is settled](Slot::settle) again | collector |
//! | 6 | a [second chance](Slot::second_chance), a [stale hint](Slot::owner_instead) | programs |
//!
//! The simulation that tests the rules uses the same code. Decisions 7, 59 and 64 have the reasons.

use crate::backend::{BACKEND_READY, BACKEND_SERVING};
use crate::selection::{BackendRef, Slot};

/// The role of a packet in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The packet opens a TCP connection.
    Opening,
    /// The packet belongs to a TCP connection that exists already.
    Midstream,
    /// A datagram, which does not show whether it opens an exchange.
    Datagram,
}

/// The time since a slot last changed its current owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastChange {
    /// A connection may have been silent since then and still live.
    Recent,
    /// Longer ago than the established time-out.
    Old,
}

impl Role {
    /// Returns whether a connection stays with the backend of its flow entry. The backend exists
    /// and has these `BACKEND_*` bits.
    ///
    /// A TCP connection is ended by its pod, or lives on. Datagrams have no end: a client that
    /// keeps sending would stay with a backend that serves no more.
    #[inline(always)]
    #[must_use]
    pub const fn keeps(self, flags: u8) -> bool {
        !matches!(self, Self::Datagram) || flags & BACKEND_SERVING != 0
    }
}

impl Slot {
    /// Rules 2 and 4: returns the slot after `next` becomes the current owner. `next` is none while
    /// the list is empty.
    ///
    /// `exists` says whether an EndpointSlice still has a backend, in any condition. In an
    /// unsettled slot, a settled owner that exists is not replaced. If it is gone, `next` becomes
    /// the settled owner as well, and the slot stays unsettled.
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

    /// Rules 1 and 3: returns the owner that gets a packet without a flow entry. `flags` returns
    /// the `BACKEND_*` bits of a backend that exists.
    #[inline(always)]
    pub fn owner(self, role: Role, flags: impl FnOnce(BackendRef) -> Option<u8>) -> BackendRef {
        if !self.is_unsettled() || matches!(role, Role::Opening) {
            return self.current();
        }
        let Some(flags) = flags(self.settled()) else {
            return self.current();
        };
        // A datagram may open a new exchange. It stays with the settled owner only while that owner
        // is Ready.
        if matches!(role, Role::Midstream) || flags & BACKEND_READY != 0 {
            self.settled()
        } else {
            self.current()
        }
    }

    /// Rule 5: returns the slot after a round of the collector that found no flow entry of another
    /// living backend than the current owner.
    ///
    /// A settled owner may live without an entry for so long. The slot then takes two rounds. The
    /// first makes the current owner the settled one, the second clears the bit. A program may
    /// enter a connection during a round, and the bit may be cleared only if every such entry names
    /// the current owner.
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

    /// Rule 6: returns the backend that gets an encapsulated packet for the backend `hinted`, if
    /// the packet has no flow entry and may still be sent on.
    ///
    /// A connection of `hinted` that began after the slot's last change has an entry on this node.
    /// So this connection is older, and its director did not know of it. The packet gets to the
    /// slot's other owner if that one exists, or to the only owner.
    ///
    /// Directors that saw other changes before still agree on the current owner. If `hinted` is not
    /// an owner of this slot, the other owner is therefore the current one.
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

    /// Rule 6 for a hint that names no backend of this node: returns the owner of a packet without
    /// a flow entry.
    ///
    /// The endpoint is gone, and its director still takes it for the slot's settled owner. A
    /// connection of that endpoint is lost. All other connections that the director knows of belong
    /// to the current owner, on which both nodes agree.
    #[inline(always)]
    pub fn owner_instead(self, role: Role, flags: impl FnOnce(BackendRef) -> Option<u8>) -> BackendRef {
        let is_known = matches!(role, Role::Midstream) && !self.current().is_none();
        if is_known { self.current() } else { self.owner(role, flags) }
    }

    /// Returns whether a backend is one of the two owners.
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
        assert_eq!(slot.change_owner(A, |_| true), Slot::unsettled(A, A), "the bit stays");
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
        let ownerless = slot.change_owner(BackendRef::NONE, |_| false);
        assert_eq!(ownerless.settle(LastChange::Recent), Slot::default());
    }

    #[test]
    fn a_slot_settles_once_no_connection_of_another_owner_can_be_left() {
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
    fn a_packet_for_an_endpoint_that_is_gone_belongs_to_the_current_owner() {
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
