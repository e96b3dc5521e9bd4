//! Power cuts under a real kernel.
//!
//! In the guest, cache and backing device are two parts of one dm-log-writes device, which records
//! the order of durable writes. `powercut load` writes through the daemon there and logs the
//! acknowledgements. It puts a mark into the record for each acknowledgement that promises
//! something.
//!
//! Afterwards, on the host, `powercut check` rebuilds the medium at every flush, FUA write and
//! mark, and with random subsets of the unflushed writes. It opens the cache on each, and compares
//! every sector with the contents that the acknowledgements allow.
//!
//! ```text
//! powercut load SOCKET EXPORT DM_DEVICE OPERATIONS SEED ACKNOWLEDGED
//! powercut check NAME MODE DURABILITY RECORD@OFFSET ACKNOWLEDGED@OFFSET CACHE_BYTES VOLUME_BYTES \
//!                SUBSETS
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

/// Parses a number in an argument.
fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} where a number was expected"))
}
