//! Patterns of device names.

use std::fmt;

/// A device name in which `*` stands for any text, the empty one included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePattern(String);

impl DevicePattern {
    /// A pattern; `None` if it is empty or could match no device name (15 bytes, no slash, no space).
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let literal = text.chars().filter(|c| *c != '*').count();
        let possible =
            !text.is_empty() && literal <= 15 && !text.contains(|c: char| c == '/' || c.is_whitespace());
        possible.then(|| Self(text.to_owned()))
    }
    /// Whether a device is meant.
    #[must_use]
    pub fn matches(&self, device: &str) -> bool {
        let Some((prefix, rest)) = self.0.split_once('*') else {
            return self.0 == device;
        };
        let Some(mut device) = device.strip_prefix(prefix) else {
            return false;
        };
        let mut parts = rest.split('*').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                return device.ends_with(part);
            }
            match device.find(part) {
                Some(at) => device = device.get(at + part.len()..).unwrap_or_default(),
                None => return false,
            }
        }
        true
    }
    /// Returns the default patterns: the names that common network plugins give to the host's end of a pod's
    /// device.
    #[must_use]
    pub fn defaults() -> Vec<Self> {
        ["veth*", "tap*", "cni*", "cali*", "lxc*", "kube-bridge"]
            .iter()
            .filter_map(|text| Self::new(text))
            .collect()
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
    fn a_star_stands_for_any_text() {
        for (pattern, matching, other) in [
            ("eth0", "eth0", "eth00"),
            ("veth*", "veth", "eth0"),
            ("*0", "cni0", "cni01"),
            ("a*b*c", "aXbYbZc", "aXcYb"),
            ("*", "anything", "-"),
            ("a**c", "abc", "ab"),
        ] {
            let parsed = DevicePattern::new(pattern).unwrap();
            assert!(parsed.matches(matching), "{pattern} {matching}");
            assert!(other == "-" || !parsed.matches(other), "{pattern} {other}");
        }
    }

    #[test]
    fn what_can_be_no_device_name_is_no_pattern() {
        for text in ["", "a/b", "a b", "sixteen-bytes-16"] {
            assert_eq!(DevicePattern::new(text), None, "{text}");
        }
    }
}
