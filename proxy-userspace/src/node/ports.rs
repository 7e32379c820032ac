//! Lists of ports in the format of `ip_local_reserved_ports`.

use std::fmt;

/// The first and the last port.
pub type Range = (u16, u16);

/// Reads a sysctl with a first and a last port, such as `32768 60999`.
#[must_use]
pub fn first_and_last(text: &str) -> Option<Range> {
    let mut numbers = text.split_whitespace().map(str::parse::<u16>);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Ranges of ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(pub Vec<Range>);

impl Ports {
    /// Returns the list of one range.
    #[must_use]
    pub fn of(range: Range) -> Self {
        Self(vec![range])
    }

    /// Parses a list such as `8080,61000-65535`. Anything but a range is left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
        };
        Self(text.split(',').filter_map(range).collect())
    }

    /// Returns whether one range includes all of another. The kernel merges adjacent ranges.
    #[must_use]
    pub fn holds(&self, (first, last): Range) -> bool {
        self.0.iter().any(|own| own.0 <= first && last <= own.1)
    }

    /// Returns these ports without those of `others`.
    #[must_use]
    pub fn without(&self, others: &Self) -> Self {
        others.0.iter().fold(self.clone(), |left, other| {
            Self(left.0.iter().flat_map(|own| subtract(*own, *other)).collect())
        })
    }
}

/// Returns the parts of a range before and after another.
fn subtract((first, last): Range, (from, to): Range) -> impl Iterator<Item = Range> {
    let before = from.checked_sub(1).map(|end| (first, end.min(last)));
    let after = to.checked_add(1).map(|begin| (begin.max(first), last));
    [before, after].into_iter().flatten().filter(|(first, last)| first <= last)
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |(first, last): &Range| {
            if first == last { first.to_string() } else { format!("{first}-{last}") }
        };
        f.write_str(&self.0.iter().map(show).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_taken_out_of_ranges() {
        let without = |text: &str, other: &str| Ports::parse(text).without(&Ports::parse(other)).to_string();
        assert_eq!(without("8080,61000-65535", "61000-65535"), "8080");
        assert_eq!(without("61000-65535", "61000-65535"), "");
        assert_eq!(without("60000-65535", "61000-61999"), "60000-60999,62000-65535");
        assert_eq!(without("0-10,65535", "5-5,65535"), "0-4,6-10");
        assert_eq!(without("1-10", "20-30"), "1-10");
        assert_eq!(without("1-10", ""), "1-10");
        assert!(Ports::parse("1-10,20").holds((2, 10)) && !Ports::parse("1-10,20").holds((2, 11)));
    }
}
