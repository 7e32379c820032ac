//! NAMES: the Service port and list behind each service id.
//!
//! No program reads it. A restarted agent adopts ids by it, and the command line shows names while
//! no agent runs.

use crate::layout::shared;

/// Bytes of a [`ServiceName`]. Namespace, name and port (63 each), family, list and separators fit.
pub const NAME_BYTES: usize = 224;

shared! {
    /// Value of NAMES, by service id: the UTF-8 text `namespace/name port family list`, padded with
    /// zeros.
    ///
    /// An example is `default/web http IPv4 Cluster`. An unnamed port is `-`.
    pub struct ServiceName {
        /// The text. It is an array of arrays because `Default` ends at 32 elements.
        pub bytes: [[u8; 32]; 7],
    }
}

/// Gives a type with `bytes`, an array of arrays, its text.
macro_rules! padded_text {
    ($name:ident) => {
        impl $name {
            /// Pads a text with zeros. Returns `None` if the text is longer than the type.
            #[must_use]
            pub fn new(text: &str) -> Option<Self> {
                let mut name = Self::default();
                name.bytes.as_flattened_mut().get_mut(..text.len())?.copy_from_slice(text.as_bytes());
                Some(name)
            }

            /// Returns the text without its padding, or `None` if it is not UTF-8.
            #[must_use]
            pub fn text(&self) -> Option<&str> {
                core::str::from_utf8(self.bytes.as_flattened()).ok().map(|text| text.trim_end_matches('\0'))
            }
        }
    };
}
pub(crate) use padded_text;

padded_text!(ServiceName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_survives_unless_it_is_too_long() {
        assert_eq!(
            ServiceName::new("default/web http IPv4 Cluster").unwrap().text(),
            Some("default/web http IPv4 Cluster")
        );
        assert_eq!(ServiceName::new(&"x".repeat(NAME_BYTES)).unwrap().text().unwrap().len(), NAME_BYTES);
        assert_eq!(ServiceName::new(&"x".repeat(NAME_BYTES + 1)), None);
    }
}
