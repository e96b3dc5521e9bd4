//! Ranges of durations, so that no key and no option takes an absurd length of time.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::size::{BadValue, Interval, human_duration, is_negative};

/// A range of durations.
pub struct Durations {
    range: RangeInclusive<Duration>,
    /// Ends of the range, as a configuration writes them.
    ends: (&'static str, &'static str),
    help: &'static str,
}

impl Durations {
    /// Returns a range. `ends` are its ends as a user writes them, and `help` is the remedy.
    #[must_use]
    pub const fn new(
        range: RangeInclusive<Duration>,
        ends: (&'static str, &'static str),
        help: &'static str,
    ) -> Self {
        Self { range, ends, help }
    }

    /// Returns the remedy for a duration outside of the range.
    #[must_use]
    pub const fn help(&self) -> &'static str {
        self.help
    }

    /// Returns the reason why a duration is not in the range. `what` names the value.
    #[must_use]
    pub fn problem(&self, what: &str, given: Duration) -> Option<String> {
        let given_in_words = human_duration(given);
        let limit = match () {
            () if given < *self.range.start() => {
                format!("less than the minimum, {}", self.ends.0)
            }
            () if given > *self.range.end() => {
                format!("more than the maximum, {}", self.ends.1)
            }
            () => return None,
        };
        Some(format!("{what} of {given_in_words} is {limit}"))
    }

    /// Parses the value of an option.
    ///
    /// # Errors
    /// If the text is no duration, or one outside of the range.
    pub fn parse(&self, text: &str) -> Result<Interval, BadValue> {
        if is_negative(text) {
            return Err(BadValue {
                what: format!("{text} is less than the minimum, {}", self.ends.0),
                help: self.help,
            });
        }
        let given: Interval = text.parse()?;
        match self.problem("a time", given.0) {
            Some(what) => Err(BadValue {
                what,
                help: self.help,
            }),
            None => Ok(given),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_outside_of_the_range_is_refused_with_the_range() {
        let second = Duration::from_secs(1);
        let durations = Durations::new(second..=second * 60, ("1s", "60s"), "write 1s to 60s");
        for good in ["1s", "60s", "1m"] {
            assert!(durations.parse(good).is_ok(), "{good}");
        }
        for (bad, end) in [
            ("999ms", "less than the minimum, 1s"),
            ("0s", "less than the minimum, 1s"),
            ("-5s", "-5s is less than the minimum, 1s"),
            ("-5", "-5 is less than the minimum, 1s"),
            ("61s", "more than the maximum, 60s"),
            ("99999h", "more than the maximum, 60s"),
        ] {
            let said = durations.parse(bad).expect_err(bad).to_string();
            assert!(said.contains(end), "{said}");
            assert!(said.contains("help: write 1s to 60s"), "{said}");
        }
    }
}
