//! Flow entries, and the ports that connections are given.

mod entry;
pub mod mode_change;
mod proof;
pub mod snat_ports;
mod track;

pub use entry::{
    Found, IN_USE, Owner, REFUSED, Sender, blank, clear, create, entered, find, first_state, forget,
    give_way, is_client_entry, is_reply_entry, is_twin, lookup, lookup_quoted, lookup_reply,
    lookup_translated, now, open, remember, turn_round,
};
pub use track::{is_shown, promote, renew, track};
