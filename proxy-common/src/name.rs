//! NAMES: which list of which service port a service id stands for.
//!
//! No program reads it. It lets a restarted agent adopt ids, and the command line show names while no agent
//! runs.

use crate::layout::shared;

/// Bytes of a [`ServiceName`]: namespace, name and port (63 each), family, list and separators fit.
pub const NAME_BYTES: usize = 224;

shared! {
    /// Value of NAMES, keyed by service id: UTF-8 text `namespace/name port family list`, padded with zeros,
    /// such as `default/web http IPv4 Cluster`; an unnamed port is `-`.
    pub struct ServiceName {
        /// The text; an array of arrays because `Default` ends at 32 elements.
        pub bytes: [[u8; 32]; 7],
    }
}

impl ServiceName {
    /// The text padded with zeros; `None` if it is longer than [`NAME_BYTES`].
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let mut name = Self::default();
        name.bytes.as_flattened_mut().get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(name)
    }
    /// The text without its padding; `None` if it is not UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        core::str::from_utf8(self.bytes.as_flattened()).ok().map(|text| text.trim_end_matches('\0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_and_too_long_a_text_is_refused() {
        assert_eq!(
            ServiceName::new("default/web http IPv4 Cluster").unwrap().text(),
            Some("default/web http IPv4 Cluster")
        );
        assert_eq!(ServiceName::new(&"x".repeat(NAME_BYTES)).unwrap().text().unwrap().len(), NAME_BYTES);
        assert_eq!(ServiceName::new(&"x".repeat(NAME_BYTES + 1)), None);
    }
}
