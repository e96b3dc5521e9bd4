//! Unit of times, if a file differs from its format.

use std::fmt;
use std::str::FromStr;

use forebay_block::{Error, ErrorKind, Result};

use super::{Bad, Counts, Source};
use crate::{Format, Request, Volumes};

/// A unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeUnit {
    /// Nanoseconds.
    Ns,
    /// Units of 100 ns, as Windows counts.
    HundredNs,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
}

impl TimeUnit {
    /// Units with their names for `--time-unit`.
    const NAMES: [(Self, &'static str, u64); 5] = [
        (Self::Ns, "ns", 1),
        (Self::HundredNs, "100ns", 100),
        (Self::Us, "us", 1_000),
        (Self::Ms, "ms", 1_000_000),
        (Self::S, "s", 1_000_000_000),
    ];

    /// Returns the unit in nanoseconds.
    const fn ns(self) -> u64 {
        Self::NAMES[self as usize].2
    }
}

impl fmt::Display for TimeUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::NAMES[*self as usize].1)
    }
}

impl FromStr for TimeUnit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(_, name, _)| *name == text);
        found.map(|(unit, ..)| *unit).ok_or_else(|| {
            let said = format!("{text:?} is not a time unit\nhelp: write ns, 100ns, us, ms or s");
            Error::new(ErrorKind::InvalidInput, said)
        })
    }
}

impl Format {
    /// Returns the unit of the format's times; `None` if it has no times, or states the unit
    /// itself.
    const fn time_unit(self) -> Option<TimeUnit> {
        Some(match self {
            Self::Msr => TimeUnit::HundredNs,
            Self::Ssdsim | Self::Fiu => TimeUnit::Ns,
            Self::Alibaba | Self::Vscsi | Self::VscsiCsvUs => TimeUnit::Us,
            Self::Replayer | Self::Flashsim => TimeUnit::Ms,
            Self::Tencent
            | Self::Systor
            | Self::Spc
            | Self::VscsiCsv
            | Self::OracleGeneral
            | Self::Smartphone => TimeUnit::S,
            Self::Native | Self::Lis | Self::BlockIds | Self::Blkparse | Self::Fio => return None,
        })
    }
}

/// Returns a reader of the file with another unit of time than its format's.
///
/// # Errors
/// `InvalidInput` for a format without a variable unit of time.
pub(super) fn counted_in(
    unit: TimeUnit,
    format: Format,
    name: &str,
    source: Box<dyn Source>,
) -> Result<Box<dyn Source>> {
    let Some(own) = format.time_unit() else {
        let said = format!(
            "{name} is {format}, whose times are not in a unit of choice\n\
             help: leave --time-unit out, or name another format (--format)"
        );
        return Err(Error::new(ErrorKind::InvalidInput, said));
    };
    Ok(match own == unit {
        true => source,
        false => Box::new(Scaled {
            source,
            from_ns: own.ns(),
            to_ns: unit.ns(),
        }),
    })
}

/// A source with times in another unit.
struct Scaled {
    source: Box<dyn Source>,
    from_ns: u64,
    to_ns: u64,
}

impl Source for Scaled {
    fn fill(&mut self, batch: &mut Vec<Request>, limit: usize) -> Result<bool> {
        let before = batch.len();
        let more = self.source.fill(batch, limit);
        for request in &mut batch[before..] {
            let scaled =
                u128::from(request.time_ns) * u128::from(self.to_ns) / u128::from(self.from_ns);
            request.time_ns = u64::try_from(scaled).map_err(|_| {
                let Bad { what, why } = Bad::TIME;
                let said = format!("the {what} {why}\nhelp: name another --time-unit");
                Error::new(ErrorKind::InvalidInput, said)
            })?;
        }
        more
    }

    fn volumes(&self) -> &Volumes {
        self.source.volumes()
    }

    fn counts(&self) -> Counts {
        self.source.counts()
    }

    fn remark(&self) -> Option<&'static str> {
        self.source.remark()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_units() {
        for (unit, name, ns) in TimeUnit::NAMES {
            assert_eq!(name.parse::<TimeUnit>().ok(), Some(unit));
            assert_eq!((unit.to_string().as_str(), unit.ns()), (name, ns));
        }
        let error = "minutes".parse::<TimeUnit>().expect_err("none").report();
        assert!(error.contains("write ns, 100ns, us, ms or s"), "{error}");
    }
}
