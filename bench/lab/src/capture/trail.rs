//! The way of one connection, as captured on the router's devices.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

use super::{Captured, Direction};

/// The nodes that a client's packets and the answers passed. The names are those of the router's
/// devices, which are the nodes'.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trail {
    /// Nodes that received the client's own packets.
    pub directors: BTreeSet<String>,
    /// Nodes that encapsulated the client's packets and sent them on.
    pub encapsulated_by: BTreeSet<String>,
    /// Nodes that received encapsulated packets.
    pub encapsulated_to: BTreeSet<String>,
    /// Nodes that sent answers with the frontend as their source.
    pub answered_by: BTreeSet<String>,
}

impl Trail {
    /// Returns the trail of the packets between `client` and `frontend`, captured on the router.
    #[must_use]
    pub fn of(packets: &[Captured], client: SocketAddr, frontend: SocketAddr) -> Self {
        let mut trail = Self::default();
        for Captured { device, direction, packet, .. } in packets {
            let request = packet.is_between(client, frontend);
            let place = match (packet.tunnel.is_some(), direction) {
                (false, Direction::Out) if request => &mut trail.directors,
                (true, Direction::In) if request => &mut trail.encapsulated_by,
                (true, Direction::Out) if request => &mut trail.encapsulated_to,
                (false, Direction::In) if packet.is_between(frontend, client) => &mut trail.answered_by,
                _ => continue,
            };
            place.insert(device.to_string());
        }
        trail
    }

    /// Returns the trail of a backend on the node that the client's packets reach.
    #[must_use]
    pub fn local(node: &str) -> Self {
        let node = BTreeSet::from([node.to_owned()]);
        Self { directors: node.clone(), answered_by: node, ..Self::default() }
    }

    /// Returns the trail of Direct Server Return: the director encapsulates, the backend's node
    /// answers.
    #[must_use]
    pub fn direct_return(director: &str, node: &str) -> Self {
        let [director, node] = [director, node].map(|name| BTreeSet::from([name.to_owned()]));
        Self {
            directors: director.clone(),
            encapsulated_by: director,
            encapsulated_to: node.clone(),
            answered_by: node,
        }
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = |set: &BTreeSet<String>| match set.len() {
            0 => "none".to_owned(),
            _ => set.iter().map(String::as_str).collect::<Vec<_>>().join("+"),
        };
        if *self == Self::default() {
            return f.pad("no packet has the frontend's address");
        }
        let tunnelled = !self.encapsulated_by.is_empty() || !self.encapsulated_to.is_empty();
        let mut way = vec![format!("client > {}", names(&self.directors))];
        if tunnelled && self.encapsulated_by != self.directors {
            way.push(format!("({} encapsulates)", names(&self.encapsulated_by)));
        }
        if tunnelled {
            way.push(format!("=tunnel=> {}", names(&self.encapsulated_to)));
        }
        if &self.answered_by != if tunnelled { &self.encapsulated_to } else { &self.directors } {
            way.push(format!("({} answers)", names(&self.answered_by)));
        }
        way.push("> client".to_owned());
        f.pad(&way.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trail_reads_as_the_way_of_the_packets() {
        assert_eq!(Trail::local("node1").to_string(), "client > node1 > client");
        let direct = Trail::direct_return("node1", "node2");
        assert_eq!(direct.to_string(), "client > node1 =tunnel=> node2 > client");
        let back = Trail { answered_by: direct.directors.clone(), ..direct };
        assert_eq!(back.to_string(), "client > node1 =tunnel=> node2 (node1 answers) > client");
        assert_eq!(Trail::default().to_string(), "no packet has the frontend's address");
    }
}
