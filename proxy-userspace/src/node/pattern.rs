//! Device names with `*` in them.

use std::fmt;

/// A device name in which `*` stands for any run of characters, such as `veth*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePattern(String);

impl DevicePattern {
    /// A pattern from its text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Whether a device of this name is meant.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let parts: Vec<&str> = parts.collect();
        let Some((last, middle)) = parts.split_last() else {
            return rest.is_empty();
        };
        for part in middle {
            let Some(at) = rest.find(part) else {
                return false;
            };
            rest = rest.get(at + part.len()..).unwrap_or_default();
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for DevicePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run_of_characters_and_nothing_else_does() {
        for (pattern, name) in
            [("eth0", "eth0"), ("veth*", "veth1a2b"), ("veth*", "veth"), ("*", "lo"), ("e*p*0", "enp3s0")]
        {
            assert!(DevicePattern::new(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("eth0", "eth01"), ("eth", "eth0"), ("veth*", "xveth0"), ("e*p*0", "enp3s1"), ("ab*ba", "aba")]
        {
            assert!(!DevicePattern::new(pattern).matches(name), "{pattern} {name}");
        }
    }
}
