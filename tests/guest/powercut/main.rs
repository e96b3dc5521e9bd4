//! Power cuts under a real kernel.
//!
//! In the guest, cache and backing device are two parts of one dm-log-writes device, which records
//! what was durable in which order. `powercut load` writes through the daemon there, keeps the log of
//! what was acknowledged, and puts a mark into the record for each acknowledgement that promises
//! something. Afterwards, on the host, `powercut check` rebuilds what the medium held at every flush,
//! FUA write and mark, and with random subsets of what no flush had covered; opens the cache on each;
//! and compares every sector with what the acknowledgements allow.
//!
//! ```text
//! powercut load SOCKET EXPORT DM_DEVICE OPERATIONS SEED ACKNOWLEDGED
//! powercut check NAME MODE DURABILITY RECORD@OFFSET ACKNOWLEDGED@OFFSET CACHE_BYTES VOLUME_BYTES SUBSETS
//! ```

mod check;
mod history;
mod image;
mod load;
mod mark;
mod record;
mod tally;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["load", rest @ ..] => load::run(rest),
        ["check", rest @ ..] => check::run(rest),
        _ => Err("powercut load|check: see the top of tests/guest/powercut/main.rs".into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("powercut: {error}");
            ExitCode::from(2)
        }
    }
}

/// A number in an argument.
fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} where a number was expected"))
}
