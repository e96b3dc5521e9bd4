//! Allowed ranges of durations in keys and options.

use std::time::Duration;

use forebay_terminal::duration::Durations;
use forebay_terminal::size::{BadValue, Interval};
use toml::Spanned;

use super::problem::Problems;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const HOUR: Duration = ms(3_600_000);
const DAY: Duration = ms(24 * 3_600_000);

/// Range of `commit_interval` of the cache. Below it, the engine would only commit.
pub(crate) const COMMIT_INTERVALS: Durations = Durations::new(
    ms(1)..=HOUR,
    ("1ms", "1h"),
    "write 1ms to 1h, or leave `commit_interval` out for 500ms",
);

/// Range of `timeout` of a volume.
pub(crate) const TIMEOUTS: Durations = Durations::new(
    ms(1000)..=HOUR,
    ("1s", "1h"),
    "write 1s to 1h; a device that is slow and well must answer within it",
);

/// Range of `burst` of a volume.
pub(crate) const BURSTS: Durations = Durations::new(
    ms(1)..=HOUR,
    ("1ms", "1h"),
    "write 1ms to 1h, or leave `burst` out for 100ms",
);

/// Range of the latencies of an emulated device.
pub(crate) const LATENCIES: Durations = Durations::new(
    Duration::ZERO..=HOUR,
    ("0s", "1h"),
    "write 0s to 1h, such as 250us",
);

const PATIENCE: Durations = Durations::new(ms(10)..=DAY, ("10ms", "24h"), "write 10ms to 24h");

const RECORDINGS: Durations = Durations::new(
    ms(1)..=ms(366 * 24 * 3_600_000),
    ("1ms", "8784h"),
    "write 1ms to 8784h, or leave it out and end the recording with Ctrl-C",
);

/// Returns the duration of a key, if the key exists. Adds a problem if the duration is outside of
/// the range. `what` names the key.
pub(super) fn check(
    durations: &Durations,
    given: Option<&Spanned<Interval>>,
    what: &str,
    problems: &mut Problems<'_>,
) -> Option<Duration> {
    let given = given?;
    let time = given.get_ref().0;
    if let Some(what) = durations.problem(what, time) {
        problems.add(&given.span(), what, durations.help());
    }
    Some(time)
}

/// Parses `--timeout`, an option of all commands.
///
/// # Errors
/// If the text is not a duration, or outside of the range.
pub(crate) fn patience(text: &str) -> Result<Interval, BadValue> {
    PATIENCE.parse(text)
}

/// Parses `--duration` of a recording.
///
/// # Errors
/// As [`patience`].
pub(crate) fn recording(text: &str) -> Result<Interval, BadValue> {
    RECORDINGS.parse(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parser of a range, a text, and whether the parser accepts it.
    type Case = (fn(&str) -> Result<Interval, BadValue>, &'static str, bool);

    #[test]
    fn options_take_no_absurd_time() {
        let cases: [Case; 7] = [
            (patience, "1ns", false),
            (patience, "0s", false),
            (patience, "10ms", true),
            (patience, "25h", false),
            (recording, "1us", false),
            (recording, "30m", true),
            (recording, "99999h", false),
        ];
        for (parse, text, is_taken) in cases {
            let parsed = parse(text);
            assert_eq!(parsed.is_ok(), is_taken, "{text}: {parsed:?}");
            if let Err(error) = parsed {
                let said = error.to_string();
                assert!(
                    ["less than the minimum, ", "more than the maximum, "]
                        .iter()
                        .any(|part| said.contains(part)),
                    "{said}"
                );
                assert!(said.contains("help: write "), "{said}");
            }
        }
    }
}
