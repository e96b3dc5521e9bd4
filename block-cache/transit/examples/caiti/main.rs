//! Response times of random writes of 4 KiB to emulated persistent memory. The writes go to it
//! directly, through a block translation table, or through a transit cache over the table. This is
//! one run, measured or modelled; `cargo xtask study caiti` makes many.
//!
//! - `caiti run SYSTEM LOAD SECONDS [KEY=VALUE]...` measures.
//! - `caiti model SYSTEM LOAD WRITES [KEY=VALUE]...` models.
//! - `caiti costs` prints the declared inputs of the model.
//! - `caiti look` prints how long a thread polls for a job before it sleeps.
//!
//! SYSTEM is `pmem`, `btt` or a policy. LOAD is `closed:N` (N writes in flight at a time) or
//! `open:N` (N a second, at random moments, independent of their completions). Each command prints
//! one JSON object. The keys are in [`settings`].

mod costs;
mod evictors;
mod measured;
mod model;
mod modelled;
#[path = "../../src/poll_policy.rs"]
mod poll_policy;
mod settings;
mod timeline;

use std::process::ExitCode;

use settings::Settings;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words[..] {
        ["costs"] => Ok(costs::declared()),
        ["look"] => Ok(serde_json::json!({ "look_ns": evictors::look_ns() })),
        ["run", ref rest @ ..] => settings_of(rest)
            .and_then(|settings| measured::run(&settings).map_err(|error| error.report())),
        ["model", ref rest @ ..] => settings_of(rest).and_then(|settings| model::run(&settings)),
        _ => Err("say run, model, look or costs".into()),
    };
    match result {
        Ok(row) => {
            println!("{row}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("caiti: {message}");
            ExitCode::FAILURE
        }
    }
}

fn settings_of(words: &[&str]) -> Result<Settings, String> {
    Settings::parse(words)
}
