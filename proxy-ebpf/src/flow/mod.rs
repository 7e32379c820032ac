//! Flow entries, and the ports that connections are given.

mod entry;
pub mod handoff;
pub mod mode_change;
mod open;
mod proof;
pub mod snat_ports;
mod track;

pub use entry::{
    Found, Sender, find, is_client_entry, is_reply_entry, is_twin, lookup, lookup_quoted, lookup_reply,
    lookup_translated, turn_round,
};
pub use open::{
    IN_USE, Owner, REFUSED, blank, clear, create, entered, first_state, forget, give_way, remember,
};
pub use track::track;
