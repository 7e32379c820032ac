//! NODE_PORTS and NODE_FLOWS4/6: connections of the node's own from ports that are also a
//! NodePort's number (decision 130).

/// The number of words in NODE_PORTS, which has a bit for each port.
pub const NODE_PORT_WORDS: u32 = (u16::MAX as u32 + 1) / u64::BITS;

/// Seconds for which incoming datagrams belong to the node's own last datagram. netfilter keeps an
/// exchange in both directions for two minutes.
pub const NODE_DATAGRAM_SECONDS: u32 = 180;

/// Returns the bit of a port in NODE_PORTS: the index of the word, and the mask. The port is in
/// network byte order.
#[inline(always)]
#[must_use]
pub const fn node_port_bit(port: u16) -> (u32, u64) {
    (port as u32 / u64::BITS, 1 << (port as u32 % u64::BITS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_a_bit_of_its_own() {
        let mut words = [0_u64; NODE_PORT_WORDS as usize];
        for port in 0..=u16::MAX {
            let (word, mask) = node_port_bit(port);
            assert_eq!(words[word as usize] & mask, 0, "{port}");
            words[word as usize] |= mask;
        }
        assert!(words.iter().all(|word| *word == u64::MAX));
    }
}
