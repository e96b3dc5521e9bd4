//! Text of figures in the cells of grids.

pub(super) fn percent(ratio: f64) -> String {
    format!("{:.1}%", ratio * 100.0)
}

pub(super) fn ratio(ratio: f64) -> String {
    format!("{ratio:.3}")
}

/// Multiple with two decimals below 100.
pub(super) fn times(value: f64) -> String {
    match value {
        small if small < 100.0 => format!("{small:.2}"),
        large => format!("{large:.0}"),
    }
}

/// Bytes with at least three digits.
pub(super) fn size(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes;
    while value >= 10_000.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value {
        small if small < 100.0 && unit > 0 => format!("{small:.1} {}", units[unit]),
        _ => format!("{value:.0} {}", units[unit]),
    }
}

/// With a separator every three digits.
pub(super) fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_three_digits_or_more() {
        assert_eq!(size(9999.0), "9999 B");
        assert_eq!(size(32768.0), "32.0 KiB");
        assert_eq!(size(1_100_000.0), "1074 KiB");
        assert_eq!(size(5e12), "4657 GiB");
        assert_eq!(
            (number(7), number(1000), number(12_345_678)),
            ("7".into(), "1,000".into(), "12,345,678".into())
        );
    }
}
