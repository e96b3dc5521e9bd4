//! Name of a test, as nextest and the inventory write it.

use std::fmt;

/// One test.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    /// The binary that holds the test, as nextest names it.
    pub(crate) binary: String,
    /// The path of the test inside its binary, with `::` between the parts.
    pub(crate) name: String,
}

impl Test {
    /// Returns the name of the package that holds the test.
    pub(crate) fn package(&self) -> &str {
        self.binary.split("::").next().unwrap_or_default()
    }

    /// Returns the name of the test function.
    pub(crate) fn function(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or_default()
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.binary, self.name)
    }
}
