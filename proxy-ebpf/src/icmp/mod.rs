//! ICMP and `ICMPv6`: our messages to senders, and others' messages about our connections.

mod answer;
mod echo;
mod encapsulated;
mod family;
mod limit;
pub mod quoted;
mod receive;
mod relay;

pub use answer::answer;
pub use family::{Icmp, solicited_node};
pub use receive::{receive, receive_of_pod};
pub use relay::{receive_tunnelled, restore};
