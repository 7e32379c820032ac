//! Flow entries, and the ports of connections.

mod entry;
pub mod handoff;
pub mod mode_change;
mod open;
mod proof;
pub mod snat_ports;
mod track;

pub use entry::{Found, Sender, find, lookup, lookup_if, lookup_quoted, lookup_reply, lookup_translated};
pub use open::{
    IN_USE, Owner, REFUSED, blank, clear, count_opened, create, first_state, forget, forget_ambiguous,
    port_or_verdict, remember,
};
pub use track::track;
