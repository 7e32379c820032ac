//! The text of a rate.

/// Returns a number with three digits or so: `0.4`, `17`, `410 k`, `3.1 G`.
pub fn rate(number: f64) -> String {
    const UNITS: [&str; 4] = ["", " k", " M", " G"];
    let (mut scaled, mut unit) = (number, 0);
    // 999.5 would be rounded to a thousand.
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1000.0;
        unit += 1;
    }
    let digits = usize::from(scaled < 9.95 && scaled > 0.0);
    format!("{scaled:.digits$}{}", UNITS.get(unit).unwrap_or(&""))
}

/// Returns the rate, or nothing for zero: an empty cell is read faster.
pub fn some_rate(number: f64) -> String {
    if number > 0.0 { rate(number) } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_has_three_digits_or_so_and_a_unit() {
        for (number, text) in [
            (0.0, "0"),
            (0.04, "0.0"),
            (0.5, "0.5"),
            (9.96, "10"),
            (812.4, "812"),
            (999.6, "1.0 k"),
            (20_114.0, "20 k"),
            (3_100_000_000.0, "3.1 G"),
            (5e12, "5000 G"),
        ] {
            assert_eq!(rate(number), text, "{number}");
        }
        assert_eq!((some_rate(0.0).as_str(), some_rate(1.0).as_str()), ("", "1.0"));
    }
}
