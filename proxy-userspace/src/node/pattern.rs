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
    /// Returns the first bytes of matching names, with the zero behind a whole name; `None` if a `*` is not at the end.
    #[must_use]
    pub fn beginning(&self) -> Option<Vec<u8>> {
        match self.0.trim_end_matches('*') {
            rest if rest.contains('*') => None,
            whole if whole == self.0 => Some(whole.bytes().chain([0]).collect()),
            rest => Some(rest.as_bytes().to_vec()),
        }
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
    fn a_star_at_the_end_leaves_the_beginning_of_names() {
        for (pattern, beginning) in
            [("veth*", Some("veth")), ("cni0", Some("cni0\0")), ("*", Some("")), ("a**", Some("a"))]
        {
            let bytes = DevicePattern::new(pattern).unwrap().beginning();
            assert_eq!(bytes.as_deref(), beginning.map(str::as_bytes), "{pattern}");
        }
        assert_eq!(DevicePattern::new("a*b").unwrap().beginning(), None);
        assert_eq!(DevicePattern::new("a*b*").unwrap().beginning(), None);
    }

    #[test]
    fn what_can_be_no_device_name_is_no_pattern() {
        for text in ["", "a/b", "a b", "sixteen-bytes-16"] {
            assert_eq!(DevicePattern::new(text), None, "{text}");
        }
    }
}
