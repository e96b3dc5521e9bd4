//! The whole cache against a model of its volumes, through a crash, a failure or random lives. The
//! input chooses these and the configuration.
#![no_main]

use forebay_io::sim::{Keep, OpClass, Stop};
use forebay_testkit::case::Case;
use forebay_testkit::crash::Target;
use forebay_testkit::machine::Crash;

#[allow(
    dead_code,
    unused_imports,
    unfulfilled_lint_expectations,
    reason = "the crash tests use more of it"
)]
#[path = "../../tests/stack/mod.rs"]
mod stack;

use stack::{CacheStack, Setup};

/// The bytes of an input, followed by zeroes.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> u64 {
        u64::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    fn crash(&mut self) -> Crash {
        let kind = self.byte() % 8;
        let number = self.number();
        let index = usize::try_from(number % 32).expect("small");
        Crash::Power(match kind {
            0 | 1 => return Crash::Process(number),
            2 => Keep::None,
            3 => Keep::All,
            4 => Keep::Only(index),
            5 => Keep::AllBut(index),
            6 => Keep::Random(number),
            _ => Keep::Torn(number),
        })
    }

    fn case(&mut self) -> Case {
        let (kind, seed) = (self.byte() % 8, self.number());
        match kind {
            0 => Case::Rot { seed },
            1..4 => {
                let classes = [
                    OpClass::Read,
                    OpClass::Write,
                    OpClass::Flush,
                    OpClass::Discard,
                ];
                Case::Fault {
                    seed,
                    // Each volume has a data device and two backing devices.
                    disk: usize::from(self.byte() % 3),
                    class: classes[usize::from(self.byte() % 4)],
                    nth: 1 + self.number() % 64,
                    closes: self.byte() & 1 != 0,
                    crash: self.crash(),
                }
            }
            4 | 5 => Case::Random { seed },
            _ => {
                let nth = 1 + self.number() % 512;
                Case::Sweep {
                    seed,
                    stop: match self.byte() % 3 {
                        0 => Stop::BeforeIo(nth),
                        1 => Stop::AfterIo(nth),
                        _ => Stop::BeforePoll(nth * 20),
                    },
                    crash: self.crash(),
                }
            }
        }
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut script = Script(data);
    let setup = match script.byte() % 2 {
        0 => Setup::draw(script.number()),
        _ => Setup::pressed(script.number()),
    };
    let target = Target {
        stack: CacheStack::new(setup),
        plan: setup.plan(),
        lives: 3,
        failing: true,
        forks: false,
        label: setup.to_string(),
        command: "cargo test --release -p forebay-tests --test crash replay",
    };
    if let Err(failure) = target.replay(script.case()) {
        panic!("{failure}");
    }
});
