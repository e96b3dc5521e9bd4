//! Loads of real programs on the file system of a folder.
//!
//! They are a key-value store's (YCSB's mixes), a file server's (after filebench), and one to check
//! after a crash.
//!
//! ```text
//! applications ycsb rocksdb|sqlite FOLDER load|a|f uniform|zipfian|latest RECORDS VALUE_BYTES \
//!              SECONDS SEED
//! applications files webserver|webproxy|varmail|fileserver FOLDER prepare|run SECONDS SEED
//! applications keep rocksdb|sqlite FOLDER SEED OPERATIONS
//! applications check rocksdb|sqlite FOLDER SEED ACKNOWLEDGED
//! ```
//!
//! The databases are those of the machine, by the shared libraries that `db_bench` and `sqlite3`
//! use.

mod draw;
mod files;
mod keep;
mod latency;
mod library;
mod rocksdb;
mod sqlite;
mod store;
mod ycsb;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["ycsb", rest @ ..] => ycsb::run(rest),
        ["files", rest @ ..] => files::run(rest),
        ["keep", rest @ ..] => keep::keep(rest),
        ["check", rest @ ..] => keep::check(rest),
        _ => Err("ycsb|files|keep|check: see the top of tests/applications/main.rs".into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("applications: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A failure ends the program with this message.
type Outcome<T> = Result<T, String>;

/// Parses a number among the arguments.
fn number<T: std::str::FromStr>(text: &str, what: &str) -> Outcome<T> {
    text.parse()
        .map_err(|_| format!("{what}: {text:?} is not such a number"))
}
