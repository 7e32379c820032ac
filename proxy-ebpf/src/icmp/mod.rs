//! ICMP and `ICMPv6`: what senders are told, and what others tell.

mod answer;
mod family;
mod limit;

pub use answer::answer;
pub use family::Icmp;
