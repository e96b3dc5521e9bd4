//! Values with units: sizes, rates, durations, percents. Each is parsed from text in a
//! configuration file or on the command line. Its errors state the expected form.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Error for text that is not a value, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadValue {
    /// Description of the problem.
    pub what: String,
    /// Remedy.
    pub help: &'static str,
}

/// Separator of problem and remedy in the text of a [`BadValue`]. serde carries only text, and the
/// configuration's reader splits it.
pub const HELP: &str = "\n    help: ";

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{HELP}{}", self.what, self.help)
    }
}

impl std::error::Error for BadValue {}

fn bad<T>(text: &str, noun: &str, help: &'static str) -> Result<T, BadValue> {
    Err(BadValue {
        what: format!("{text:?} is not {noun}"),
        help,
    })
}

/// Returns the error for `text`: its number or its unit is invalid, or both if there is neither.
fn unreadable<T>(
    text: &str,
    noun: &str,
    (number, unit): (&str, &str),
    help: &'static str,
) -> Result<T, BadValue> {
    let what = match (number.is_empty(), unit.is_empty()) {
        _ if is_negative(text) => format!("{text:?} is not {noun}: it is less than zero"),
        (true, true) => format!("{text:?} is not {noun}: nothing is given"),
        (true, false) => format!("{text:?} is not {noun}: it does not begin with a number"),
        (false, true) => format!("{text:?} is not {noun}: it has no unit"),
        (false, false) => format!("{text:?} is not {noun}: there is no unit {unit:?}"),
    };
    Err(BadValue { what, help })
}

/// Whether `text` begins with a minus sign. No value here does.
pub(crate) fn is_negative(text: &str) -> bool {
    text.trim_start().starts_with('-')
}

/// Returns the error for a number with a known unit.
fn unscaled<T>(
    text: &str,
    noun: &str,
    number: &str,
    most: &str,
    help: &'static str,
) -> Result<T, BadValue> {
    let is_decimal = |part: &str| {
        part.bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_')
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let what = match () {
        () if is_negative(text) => format!("{text:?} is not {noun}: it is less than zero"),
        () if text.trim().is_empty() => format!("{text:?} is not {noun}: nothing is given"),
        () if number.is_empty() => {
            format!("{text:?} is not {noun}: it does not begin with a number")
        }
        () if whole.is_empty() || part.is_empty() || !is_decimal(part) => {
            format!("{text:?} is not {noun}: {number:?} is not a number")
        }
        () if number.contains('.') => {
            format!("{text:?} is not {noun}: it is not a whole number, or more than {most}")
        }
        () => format!("{text:?} is more than the maximum, {most}"),
    };
    Err(BadValue { what, help })
}

/// Number of bytes, with either kind of unit: `512`, `32K`, `64GiB` (binary), `64GB` (decimal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Bytes per second, with either kind of unit: `100MB/s` (decimal), `100MiB/s` (binary).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(pub u64);

/// Duration: `250us`, `1ms`, `1.5s`, `2m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interval(pub Duration);

/// Share of a whole: `60%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

/// Splits `"1.5ms"` into `("1.5", "ms")`.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Returns `number` (with at most nine decimals) times `unit`. Returns `None` if it is not a
/// number, does not fit, or the product is not whole.
fn scaled(number: &str, unit: u64) -> Option<u64> {
    let number = number.replace('_', "");
    let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
    if part.len() > 9 || number.ends_with('.') {
        return None;
    }
    let whole: u128 = whole.parse().ok()?;
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let part: u128 = if part.is_empty() {
        0
    } else {
        part.parse().ok()?
    };
    let product = whole
        .checked_mul(scale)?
        .checked_add(part)?
        .checked_mul(u128::from(unit))?;
    (product % scale == 0)
        .then(|| u64::try_from(product / scale).ok())
        .flatten()
}

const SIZE_HELP: &str = "write bytes, or a number with K, M, G, T or KiB to TiB (powers of 1024) \
     or kB to TB (powers of 1000), \
     such as \"32K\", \"64GiB\" or \"64GB\"";

impl FromStr for Size {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (number, unit) = split(text);
        let unit = match unit {
            "" | "B" => 1,
            "K" | "k" | "KiB" => 1 << 10,
            "M" | "MiB" => 1 << 20,
            "G" | "GiB" => 1 << 30,
            "T" | "TiB" => 1 << 40,
            "kB" | "KB" => 1_000,
            "MB" => 1_000_000,
            "GB" => 1_000_000_000,
            "TB" => 1_000_000_000_000,
            other => return unreadable(text, "a size", (number, other), SIZE_HELP),
        };
        match scaled(number, unit) {
            Some(bytes) => Ok(Self(bytes)),
            None => unscaled(text, "a size", number, "16 EiB", SIZE_HELP),
        }
    }
}

const RATE_HELP: &str = "write bytes a second with a unit, such as \"100MB/s\" (millions) or \
    \"100MiB/s\" (powers of 1024)";

impl FromStr for Rate {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (number, unit) = split(text);
        let unit = match unit.strip_suffix("/s") {
            Some("B") => 1,
            Some("kB" | "KB") => 1_000,
            Some("MB") => 1_000_000,
            Some("GB") => 1_000_000_000,
            Some("KiB") => 1 << 10,
            Some("MiB") => 1 << 20,
            Some("GiB") => 1 << 30,
            _ => return unreadable(text, "a rate", split(text), RATE_HELP),
        };
        match scaled(number, unit) {
            Some(0) => Err(BadValue {
                what: "a rate of zero admits no request".into(),
                help: "write a higher one, or leave it out where there is no limit",
            }),
            Some(bytes) => Ok(Self(bytes)),
            None => unscaled(text, "a rate", number, "16 EiB/s", RATE_HELP),
        }
    }
}

const INTERVAL_HELP: &str =
    "write a number with ns, us, ms, s, m or h, such as \"250us\", \"1ms\" or \"2s\"";

impl FromStr for Interval {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (number, unit) = split(text);
        let unit_ns = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            other => return unreadable(text, "a duration", (number, other), INTERVAL_HELP),
        };
        let is_whole = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        match scaled(number, unit_ns) {
            Some(ns) => Ok(Self(Duration::from_nanos(ns))),
            None if is_whole => Err(BadValue {
                what: format!("{text:?} is more than the longest duration, 584 years"),
                help: "write a shorter one",
            }),
            None => unscaled(text, "a duration", number, "584 years", INTERVAL_HELP),
        }
    }
}

const PERCENT_HELP: &str =
    "write a whole number from 1 to 100 with a percent sign, such as \"60%\"";

impl FromStr for Percent {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let number = text.trim().strip_suffix('%').map(str::trim_end);
        match number.and_then(|number| number.parse::<u8>().ok()) {
            Some(percent @ 1..=100) => Ok(Self(percent)),
            _ => bad(text, "a percentage", PERCENT_HELP),
        }
    }
}

/// Reads a value from text; for sizes, also from a bare number of bytes.
struct TextVisitor<T> {
    from_number: Option<fn(u64) -> T>,
    what: &'static str,
    here: PhantomData<T>,
}

impl<T: FromStr<Err = BadValue>> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        match (self.from_number, u64::try_from(number)) {
            (Some(make), Ok(number)) => Ok(make(number)),
            _ => Err(E::invalid_type(de::Unexpected::Signed(number), &self)),
        }
    }
}

macro_rules! deserialize_text {
    ($type:ident, $from_number:expr, $what:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextVisitor {
                    from_number: $from_number,
                    what: $what,
                    here: PhantomData,
                })
            }
        }
    };
}

deserialize_text!(Size, Some(Size), "a size such as \"32K\"");
deserialize_text!(Rate, None, "a rate such as \"100MB/s\", in quotes");
deserialize_text!(Interval, None, "a duration such as \"1ms\", in quotes");
deserialize_text!(Percent, None, "a percentage such as \"60%\", in quotes");

/// Returns bytes for people: `1.5 GiB`, `32 KiB`, `512 B`.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    // Rounded first, so that each whole number has one form.
    let mut tenths = (value * 10.0).round();
    if tenths >= 10_240.0 && unit + 1 < UNITS.len() {
        unit += 1;
        tenths = 10.0;
    }
    if tenths % 10.0 == 0.0 || unit == 0 {
        format!("{:.0} {}", tenths / 10.0, UNITS[unit])
    } else {
        format!("{:.1} {}", tenths / 10.0, UNITS[unit])
    }
}

/// Returns a count for people: `1 volume`, `2 volumes`. The plural adds an `s`.
#[must_use]
pub fn human_count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Returns a duration for people: `850 us`, `1.5 ms`, `42 s`, `3 h 20 min`; whole numbers without a
/// fraction.
#[must_use]
pub fn human_duration(duration: Duration) -> String {
    let us = duration.as_micros();
    let s = duration.as_secs();
    match us {
        0 if !duration.is_zero() => format!("{} ns", duration.as_nanos()),
        0 => "0 s".to_owned(),
        1..1_000 => format!("{us} us"),
        1_000..1_000_000 if us.is_multiple_of(1_000) => format!("{} ms", us / 1_000),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        1_000_000..10_000_000 if us.is_multiple_of(1_000_000) => format!("{s} s"),
        1_000_000..10_000_000 => format!("{:.1} s", us as f64 / 1e6),
        _ if s < 120 => format!("{s} s"),
        _ if s < 7200 => format!("{} min {} s", s / 60, s % 60),
        _ if s < 172_800 => format!("{} h {} min", s / 3600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        let ok = |text: &str| text.parse::<Size>().map(|size| size.0);
        assert_eq!(ok("512"), Ok(512));
        assert_eq!(ok("32K"), Ok(32 << 10));
        assert_eq!(ok("1.5 MiB"), Ok(3 << 19));
        for (text, bytes) in [
            ("64G", 64 << 30),
            ("64GiB", 64 << 30),
            ("64 GiB", 64 << 30),
            ("64GB", 64_000_000_000),
            ("1.5MB", 1_500_000),
            ("32kB", 32_000),
            ("32KB", 32_000),
            ("2TB", 2_000_000_000_000),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(ok(text), Ok(bytes), "{text}");
        }
        for wrong in [
            "",
            "K",
            "32kb",
            "32Gb",
            "-1",
            "1.3",
            "1e9",
            "99999999999T",
            "1..2K",
            "1.K",
        ] {
            let error = ok(wrong).expect_err(wrong).to_string();
            assert!(error.contains("powers of 1024"), "{wrong}: {error}");
        }
    }

    #[test]
    fn refused_sizes_rates_and_intervals_name_the_cause() {
        for (text, part) in [
            ("64X", "there is no unit \"X\""),
            ("64 Gb", "there is no unit \"Gb\""),
            ("", "nothing is given"),
            ("G", "does not begin with a number"),
            ("-1", "it is less than zero"),
            ("-1G", "it is less than zero"),
            ("1.3", "not a whole number"),
            ("1..2K", "\"1..2\" is not a number"),
            ("1.K", "\"1.\" is not a number"),
            ("99999999999T", "more than the maximum, 16 EiB"),
        ] {
            let said = text.parse::<Size>().expect_err(text).what;
            assert!(said.contains(part), "{text}: {said}");
        }
        let said = "100M".parse::<Rate>().expect_err("no rate").what;
        assert!(said.contains("there is no unit \"M\""), "{said}");
        let said = "5".parse::<Interval>().expect_err("no unit").what;
        assert!(said.contains("it has no unit"), "{said}");
        let said = "5 fortnights"
            .parse::<Interval>()
            .expect_err("no unit")
            .what;
        assert!(said.contains("no unit \"fortnights\""), "{said}");
    }

    #[test]
    fn rates_say_which_unit_they_mean() {
        let ok = |text: &str| text.parse::<Rate>().map(|rate| rate.0);
        assert_eq!(ok("100MB/s"), Ok(100_000_000));
        assert_eq!(ok("100 MiB/s"), Ok(100 << 20));
        assert!(ok("100M").is_err());
        assert!(
            ok("0MB/s")
                .unwrap_err()
                .to_string()
                .contains("leave it out")
        );
    }

    #[test]
    fn durations_and_percents() {
        let ok = |text: &str| text.parse::<Interval>().map(|interval| interval.0);
        assert_eq!(ok("1ms"), Ok(Duration::from_millis(1)));
        assert_eq!(ok("0.5s"), Ok(Duration::from_millis(500)));
        assert!(ok("1").is_err());
        let longest = ok("99999999999999h").expect_err("longer than 64 bits of nanoseconds");
        assert!(longest.what.contains("584 years"), "{longest}");
        assert_eq!("60%".parse(), Ok(Percent(60)));
        for wrong in ["0%", "101%", "60", "%", "-5%"] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(human_bytes(512), "512 B");
        assert_eq!(human_bytes(32 << 10), "32 KiB");
        assert_eq!(human_bytes(3 << 29), "1.5 GiB");
        for (bytes, text) in [
            ((7 << 30) - (20 << 20), "7 GiB"),
            ((7 << 30) + (20 << 20), "7 GiB"),
            ((7 << 30) + (60 << 20), "7.1 GiB"),
            ((1 << 30) - 1, "1 GiB"),
            (1023, "1023 B"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
        assert_eq!(human_count(0, "volume"), "0 volumes");
        assert_eq!(human_count(1, "volume"), "1 volume");
        for (us, text) in [
            (0, "0 s"),
            (850, "850 us"),
            (1_500, "1.5 ms"),
            (300_000, "300 ms"),
            (1_300_000, "1.3 s"),
            (5_000_000, "5 s"),
        ] {
            assert_eq!(human_duration(Duration::from_micros(us)), text);
        }
        assert_eq!(human_duration(Duration::from_secs(12_000)), "3 h 20 min");
    }
}
