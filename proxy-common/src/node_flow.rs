//! NODE_PORTS and NODE_FLOWS4/6: connections of this node's own at ports where it also serves.

/// Number of words in NODE_PORTS: a bit for each port.
pub const NODE_PORT_WORDS: u32 = (u16::MAX as u32 + 1) / u64::BITS;

/// Seconds for which datagrams belong to what this node sent last: netfilter keeps an exchange in both directions for two minutes.
pub const NODE_DATAGRAM_SECONDS: u32 = 180;

/// The bit of a port in NODE_PORTS: index of the word, and mask. The port is in network byte order.
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
