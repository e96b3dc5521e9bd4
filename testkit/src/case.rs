//! One run of a driver as text: `sweep 7 after-io 12 power only 3`.

use std::fmt;
use std::str::FromStr;

use forebay_io::sim::{Keep, OpClass, Stop};

use crate::machine::Crash;

/// One run of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// The workload of `seed`, cut off, and crashed.
    Sweep {
        /// Seed of the workload.
        seed: u64,
        /// Point of the cut.
        stop: Stop,
        /// Outcome of the unflushed writes.
        crash: Crash,
    },
    /// The workload of `seed` with one failed operation, and a crash after it.
    Fault {
        /// Seed of the workload.
        seed: u64,
        /// Index of the device.
        disk: usize,
        /// Kind of the failed operation.
        class: OpClass,
        /// Number of the failed operation among its kind.
        nth: u64,
        /// Whether the stack shuts down before the crash.
        closes: bool,
        /// Outcome of the unflushed writes.
        crash: Crash,
    },
    /// The lives and crashes that `seed` draws.
    Random {
        /// Seed of everything.
        seed: u64,
    },
    /// The lives and crashes that `seed` draws, on devices whose contents rot.
    Rot {
        /// Seed of everything.
        seed: u64,
    },
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sweep { seed, stop, crash } => {
                let (name, nth) = match stop {
                    Stop::BeforeIo(nth) => ("before-io", nth),
                    Stop::AfterIo(nth) => ("after-io", nth),
                    Stop::BeforePoll(nth) => ("before-poll", nth),
                };
                write!(f, "sweep {seed} {name} {nth} ")?;
                write_crash(f, crash)
            }
            Self::Fault {
                seed,
                disk,
                class,
                nth,
                closes,
                crash,
            } => {
                let class = match class {
                    OpClass::Read => "read",
                    OpClass::Write => "write",
                    OpClass::Flush => "flush",
                    OpClass::Discard => "discard",
                };
                let end = if *closes { "closed" } else { "open" };
                write!(f, "fault {seed} {disk} {class} {nth} {end} ")?;
                write_crash(f, crash)
            }
            Self::Random { seed } => write!(f, "random {seed}"),
            Self::Rot { seed } => write!(f, "rot {seed}"),
        }
    }
}

fn write_crash(f: &mut fmt::Formatter<'_>, crash: &Crash) -> fmt::Result {
    match crash {
        Crash::Process(seed) => write!(f, "process {seed}"),
        Crash::Power(keep) => match keep {
            Keep::None => write!(f, "power none"),
            Keep::All => write!(f, "power all"),
            Keep::Only(one) => write!(f, "power only {one}"),
            Keep::AllBut(one) => write!(f, "power all-but {one}"),
            Keep::Disk(one) => write!(f, "power disk {one}"),
            Keep::Random(seed) => write!(f, "power random {seed}"),
            Keep::Torn(seed) => write!(f, "power torn {seed}"),
        },
    }
}

/// The words of a case in order.
struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<&'a str, String> {
        self.0
            .next()
            .ok_or_else(|| "the case is too short".to_owned())
    }

    fn number<N: FromStr>(&mut self) -> Result<N, String> {
        let word = self.word()?;
        word.parse()
            .map_err(|_| format!("{word:?} is not a number"))
    }

    fn crash(&mut self) -> Result<Crash, String> {
        match self.word()? {
            "process" => Ok(Crash::Process(self.number()?)),
            "power" => Ok(Crash::Power(match self.word()? {
                "none" => Keep::None,
                "all" => Keep::All,
                "only" => Keep::Only(self.number()?),
                "all-but" => Keep::AllBut(self.number()?),
                "disk" => Keep::Disk(self.number()?),
                "random" => Keep::Random(self.number()?),
                "torn" => Keep::Torn(self.number()?),
                other => return Err(format!("power loss keeps no {other:?}")),
            })),
            other => Err(format!("no crash is called {other:?}")),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = Words(text.split_whitespace());
        let kind = words.word()?;
        let seed = words.number()?;
        let case = match kind {
            "random" => Self::Random { seed },
            "rot" => Self::Rot { seed },
            "sweep" => {
                let stop = match words.word()? {
                    "before-io" => Stop::BeforeIo(words.number()?),
                    "after-io" => Stop::AfterIo(words.number()?),
                    "before-poll" => Stop::BeforePoll(words.number()?),
                    other => return Err(format!("no stop is called {other:?}")),
                };
                let crash = words.crash()?;
                Self::Sweep { seed, stop, crash }
            }
            "fault" => {
                let disk = words.number()?;
                let class = match words.word()? {
                    "read" => OpClass::Read,
                    "write" => OpClass::Write,
                    "flush" => OpClass::Flush,
                    "discard" => OpClass::Discard,
                    other => return Err(format!("no operation is called {other:?}")),
                };
                Self::Fault {
                    seed,
                    disk,
                    class,
                    nth: words.number()?,
                    closes: match words.word()? {
                        "closed" => true,
                        "open" => false,
                        other => return Err(format!("no end is called {other:?}")),
                    },
                    crash: words.crash()?,
                }
            }
            other => return Err(format!("no case is called {other:?}")),
        };
        match words.0.next() {
            None => Ok(case),
            Some(more) => Err(format!("{more:?} after the end of the case")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        for text in [
            "random 18446744073709551615",
            "rot 3",
            "sweep 7 before-io 12 power none",
            "sweep 7 after-io 1 power all-but 3",
            "sweep 7 before-poll 900 process 5",
            "fault 7 1 flush 2 open power random 9",
            "fault 7 1 flush 2 closed process 9",
        ] {
            assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "sweep 7",
            "random x",
            "random 1 2",
            "sweep 1 at 2 process 1",
            "fault 7 1 flush 2 process 9",
        ] {
            assert!(text.parse::<Case>().is_err(), "{text}");
        }
    }
}
