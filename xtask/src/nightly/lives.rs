//! The random lives that tests report in the rows of their output.

use crate::junit::Case;

/// The random lives that tests report in their rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Lives {
    pub(super) lives: u64,
    crashes: u64,
}

impl Lives {
    /// Adds the rows of all cases up.
    ///
    /// # Errors
    /// Returns an error for a row that is not JSON.
    pub(super) fn of(cases: &[Case]) -> Result<Self, String> {
        let mut sum = Self::default();
        for case in cases {
            for row in case.rows()? {
                let number = |key: &str| row[key].as_u64().unwrap_or(0);
                sum.lives += number("seeds");
                sum.crashes += number("crashes");
            }
        }
        Ok(sum)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        self.crashes += other.crashes;
    }
}

impl std::fmt::Display for Lives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lives, crashes) = (grouped(self.lives), grouped(self.crashes));
        write!(f, "{lives} lives, {crashes} crashes")
    }
}

/// Returns the number of seeds that a family of random lives reports.
pub(super) fn seeds_of(family: &str, cases: &[Case]) -> Result<u64, String> {
    let mut sum = 0;
    for case in cases {
        let rows = case.rows()?;
        let own = rows.iter().filter(|row| row["check"] == family);
        sum += own
            .map(|row| row["seeds"].as_u64().unwrap_or(0))
            .sum::<u64>();
    }
    Ok(sum)
}

/// Returns a number with a comma between groups of three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(String::from_utf8_lossy)
        .collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_name::Test;

    #[test]
    fn rows_of_all_tests_are_added_up() {
        let case = |output: &str| Case {
            test: Test {
                binary: "a".into(),
                name: "one".into(),
            },
            seconds: 1.0,
            failure: None,
            output: output.into(),
        };
        let cases = [
            case("ROW {\"check\": \"a\", \"seeds\": 7, \"crashes\": 1200}\nok\n"),
            case("ROW {\"seeds\": 3}\n    ROW {\"crashes\": 34, \"rotted\": 5}\n"),
        ];
        let lives = Lives::of(&cases).expect("well-formed");
        assert_eq!(lives.to_string(), "10 lives, 1,234 crashes");
        assert!(Lives::of(&[case("ROW {")]).is_err());
        assert_eq!(seeds_of("a", &cases), Ok(7));
        assert_eq!(seeds_of("b", &cases), Ok(0));
    }

    #[test]
    fn digits_are_grouped() {
        let numbers = [0, 999, 1000, 1_234_567].map(grouped);
        assert_eq!(numbers, ["0", "999", "1,000", "1,234,567"]);
    }
}
