//! Numbers of options, each with its range, which its error states.

use std::ops::RangeInclusive;

/// Returns a parser of whole numbers in `range`. Its error is a sentence with the range.
pub fn whole<T: TryFrom<u64>>(
    range: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| match (range.start(), range.end()) {
            (least, &u64::MAX) => format!("it is not a whole number, {least} or more"),
            (least, most) => format!("it is not a whole number from {least} to {most}"),
        })
    }
}

/// Returns a parser of numbers in `range`. Its error is a sentence with the range.
pub fn decimal(
    range: RangeInclusive<f64>,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| format!("it is not a number from {least} to {most}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_outside_of_its_range_is_refused_with_the_range() {
        let parse = whole::<u8>(1..=31);
        assert_eq!(parse("31"), Ok(31));
        for wrong in ["-5", "0", "32", "300", "x", ""] {
            let said = parse(wrong).expect_err(wrong);
            assert_eq!(said, "it is not a whole number from 1 to 31");
        }
        let said = whole::<u64>(1..=u64::MAX)("-5").expect_err("negative");
        assert_eq!(said, "it is not a whole number, 1 or more");
        assert_eq!(decimal(0.0..=2.5)("2.5"), Ok(2.5));
        for wrong in ["-5", "2.6", "NaN", "x"] {
            let said = decimal(0.0..=2.5)(wrong).expect_err(wrong);
            assert_eq!(said, "it is not a number from 0 to 2.5");
        }
    }
}
