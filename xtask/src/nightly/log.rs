//! docs/results/nightly.md: the results of the nightly runs, and the next seed of the random lives.

use std::fs;
use std::path::{Path, PathBuf};

/// The path of the log, relative to the workspace root.
pub(super) const PATH: &str = "docs/results/nightly.md";

const SEED: &str = "Next seed: ";
const HEAD: &str = "| date (UTC) | commit | machine | part | counted | seconds | result |";
const REMEDY: &str = "restore docs/results/nightly.md from the last commit";

/// One line of the table.
#[derive(Debug)]
pub(super) struct Row<'a> {
    /// The day on which the part ended, as `2026-11-30`.
    pub(super) date: &'a str,
    /// The short commit id, with `+` if the working tree differs.
    pub(super) commit: &'a str,
    /// The processors, the memory and the kernel.
    pub(super) machine: &'a str,
    pub(super) part: &'a str,
    /// The work that was done, such as the number of tests.
    pub(super) counted: &'a str,
    pub(super) seconds: u64,
    pub(super) result: &'a str,
}

/// The log's file.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
}

impl Log {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            path: root.join(PATH),
        }
    }

    fn read(&self) -> Result<String, String> {
        fs::read_to_string(&self.path)
            .map_err(|error| format!("cannot read {PATH}: {error}\nhelp: {REMEDY}"))
    }

    fn write(&self, text: &str) -> Result<(), String> {
        fs::write(&self.path, text).map_err(|error| format!("cannot write {PATH}: {error}"))
    }

    /// Returns the first seed that no nightly run has taken.
    ///
    /// # Errors
    /// Returns an error if the log is unreadable or has no counter.
    pub(super) fn next_seed(&self) -> Result<u64, String> {
        next_seed(&self.read()?)
    }

    /// Advances the counter to `seed`.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read or written, or has no counter.
    pub(super) fn set_next_seed(&self, seed: u64) -> Result<(), String> {
        self.write(&with_next_seed(&self.read()?, seed)?)
    }

    /// Appends a row to the table.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read or written, or has no table.
    pub(super) fn append(&self, row: &Row<'_>) -> Result<(), String> {
        self.write(&with_row(&self.read()?, row)?)
    }
}

fn next_seed(text: &str) -> Result<u64, String> {
    let seeds: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix(SEED))
        .collect();
    match seeds[..] {
        [seed] => seed
            .parse()
            .map_err(|_| format!("{PATH}: {seed:?} is not a seed\nhelp: {REMEDY}")),
        _ => {
            let count = seeds.len();
            Err(format!(
                "{PATH} has {count} lines `{SEED}N`, not one\nhelp: {REMEDY}"
            ))
        }
    }
}

fn with_next_seed(text: &str, seed: u64) -> Result<String, String> {
    let old = next_seed(text)?;
    Ok(text.replace(&format!("{SEED}{old}\n"), &format!("{SEED}{seed}\n")))
}

/// The file ends with the table, so a row is appended to the text.
fn with_row(text: &str, row: &Row<'_>) -> Result<String, String> {
    let last = text.lines().next_back();
    if !text.lines().any(|line| line == HEAD) || !last.is_some_and(|last| last.starts_with('|')) {
        return Err(format!(
            "{PATH} does not end with the table of results\nhelp: {REMEDY}"
        ));
    }
    let seconds = row.seconds.to_string();
    let cells = [
        row.date,
        row.commit,
        row.machine,
        row.part,
        row.counted,
        &seconds,
        row.result,
    ];
    let cells = cells.map(|cell| cell.replace('|', "/").replace('\n', " "));
    Ok(format!("{}\n| {} |\n", text.trim_end(), cells.join(" | ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Nightly\n\nNext seed: 1000000\n\n\
        | date (UTC) | commit | machine | part | counted | seconds | result |\n\
        |---|---|---|---|---|---:|---|\n";

    const ROW: Row<'_> = Row {
        date: "2026-11-30",
        commit: "d8b6c12+",
        machine: "2 x A, 24000 MiB, Linux 6.18",
        part: "seeds",
        counted: "50,000 seeds",
        seconds: 3600,
        result: "passed",
    };

    #[test]
    fn rows_are_appended_in_order() {
        let one = with_row(TEXT, &ROW).expect("a table");
        let other = Row {
            result: "SKIPPED: a|b",
            ..ROW
        };
        let two = with_row(&one, &other).expect("a table");
        let line = "| 2026-11-30 | d8b6c12+ | 2 x A, 24000 MiB, Linux 6.18 | seeds \
            | 50,000 seeds | 3600 |";
        assert_eq!(one, format!("{TEXT}{line} passed |\n"));
        assert_eq!(
            two,
            format!("{TEXT}{line} passed |\n{line} SKIPPED: a/b |\n")
        );
    }

    #[test]
    fn a_log_that_does_not_end_with_its_table_is_an_error() {
        for text in [
            "",
            "# Nightly\n",
            &format!("{TEXT}\nMore.\n"),
            "| a | b |\n|---|---|\n",
        ] {
            assert!(with_row(text, &ROW).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_counter_advances_and_nothing_else_changes() {
        assert_eq!(next_seed(TEXT), Ok(1_000_000));
        let advanced = with_next_seed(TEXT, 1_005_000).expect("a counter");
        assert_eq!(next_seed(&advanced), Ok(1_005_000));
        assert_eq!(advanced.replace("1005000", "1000000"), TEXT);
    }

    #[test]
    fn a_log_without_one_counter_is_an_error() {
        let two = format!("{TEXT}Next seed: 5\n");
        for text in ["", &two, &TEXT.replace("1000000", "many")] {
            assert!(next_seed(text).is_err(), "{text:?}");
            assert!(with_next_seed(text, 1).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_log_of_this_repository_is_well_formed() {
        let log = Log::new(&crate::workspace_root());
        let text = log.read().expect("readable");
        assert!(next_seed(&text).is_ok_and(|seed| seed >= 1_000_000));
        assert!(with_row(&text, &ROW).is_ok());
    }
}
