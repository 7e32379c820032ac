//! Words for people.

use std::net::SocketAddr;

use proxy_common::Address;
use proxy_common::backend::Backend;

/// Returns address and port; the port is in network byte order.
pub fn at<A: Address>(address: A, port: u16) -> String {
    socket(address, port).to_string()
}

/// Returns the socket address; the port is in network byte order.
pub fn socket<A: Address>(address: A, port: u16) -> SocketAddr {
    SocketAddr::new(address.to_ip(), u16::from_be(port))
}

/// Returns address, port and place of a backend.
pub fn endpoint<A: Address>(backend: &Backend<A>) -> String {
    let place = if backend.is_local() { "this node" } else { "another node" };
    format!("{} ({place})", at(backend.address, backend.port))
}

/// Returns a time as people say it.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3600),
    }
}

/// Returns the first items of a list, and the number of the others.
pub fn some_of(items: &[String], most: usize) -> String {
    let shown = items.iter().take(most).cloned().collect::<Vec<_>>().join(", ");
    if items.len() > most { format!("{shown} and {} more", items.len() - most) } else { shown }
}
