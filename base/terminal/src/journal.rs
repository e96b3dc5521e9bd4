//! Priorities of log lines for systemd's journal.
//!
//! The journal reads the standard error of a service. It takes a number in angle brackets at the
//! start of a line as the line's priority (sd-daemon(3)).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use tracing::Level;

/// Priority of an error, as syslog numbers it.
pub const ERROR: u8 = 3;

/// Returns whether systemd's journal reads standard error. The journal sets `JOURNAL_STREAM` to the
/// device and the inode of its socket.
#[must_use]
pub fn reads_stderr() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else {
        return false;
    };
    let stderr = std::io::stderr();
    let found = (stderr.as_fd().try_clone_to_owned()).and_then(|it| File::from(it).metadata());
    found.is_ok_and(|found| stream == format!("{}:{}", found.dev(), found.ino()))
}

/// Returns the priority of a level.
#[must_use]
pub fn priority_of(level: Level) -> u8 {
    match level {
        Level::ERROR => ERROR,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Returns `text` with the priority before each line: the journal takes each as a record.
#[must_use]
pub fn with_priority(text: &str, priority: u8) -> String {
    text.lines()
        .map(|line| format!("<{priority}>{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_the_priority_of_its_level() {
        let text = with_priority("the cache has failed\n    help: see the disk\n", 3);
        assert_eq!(text, "<3>the cache has failed\n<3>    help: see the disk\n");
        let levels = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG];
        assert_eq!(levels.map(priority_of), [3, 4, 6, 7]);
        assert_eq!(priority_of(Level::TRACE), 7);
    }
}
