//! Whole numbers of keys. Each has its range, which its errors state.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, Unexpected, Visitor};
use toml::Spanned;

use super::problem::Problems;

/// Whole number of a key that accepts `MIN` to `MAX`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole<const MIN: u32, const MAX: u32>(u64);

/// Number of things, of which zero are none.
pub(super) type Count = Whole<1, { u32::MAX }>;

impl<const MIN: u32, const MAX: u32> Whole<MIN, MAX> {
    /// Returns the number, if it is in the range. Adds a problem if it is not: `what` describes the
    /// use of such a number, and `else_help` an alternative.
    pub(super) fn check(
        given: &Spanned<Self>,
        problems: &mut Problems<'_>,
        what: impl FnOnce(u64) -> String,
        else_help: &str,
    ) -> Option<u32> {
        let number = given.get_ref().0;
        let narrow = u32::try_from(number).ok();
        let found = narrow.filter(|number| (MIN..=MAX).contains(number));
        if found.is_none() {
            let help = format!("write a number from {MIN} to {MAX}{else_help}");
            problems.add(&given.span(), what(number), help);
        }
        found
    }
}

struct WholeVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Visitor<'_> for WholeVisitor<MIN, MAX> {
    type Value = Whole<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from {MIN} to {MAX}")
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) => Ok(Whole(number)),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Whole(number))
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(WholeVisitor::<MIN, MAX>)
    }
}
