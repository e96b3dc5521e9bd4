//! The study of the distributed cache beside its baselines: `dpc model` takes cells as JSON, one a line, and prints
//! each with its counts and its modelled time. `cargo xtask study dpc` runs it and writes the page.

mod clock;
mod costs;
mod pool;
mod private;
mod run;
mod shared;
#[cfg(test)]
mod tests;
mod tokens;
mod workload;

use std::io::BufRead;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("model") => model(),
        _ => Err("usage: dpc model < CELLS".to_owned()),
    }
    .map_or_else(
        |error| {
            eprintln!("dpc: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn model() -> Result<(), String> {
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|error| error.to_string())?;
        let job = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
        println!("{}", run::run(&job)?);
    }
    Ok(())
}
