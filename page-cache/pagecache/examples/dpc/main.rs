//! Study of the distributed cache and its baselines. `dpc model CELL` runs a cell (JSON) and prints
//! it with its counts and its modelled time. `dpc measure` measures two nodes of the library on
//! this machine. `cargo xtask study dpc` runs it and writes the page.

mod clock;
#[allow(dead_code, reason = "shared with the tests, which use more of it")]
#[path = "../../tests/threads/cluster.rs"]
mod cluster;
mod costs;
mod measure;
mod pool;
mod private;
#[path = "../../tests/threads/reads.rs"]
mod reads;
mod run;
mod shared;
#[path = "../../tests/threads/silent.rs"]
mod silent;
#[cfg(test)]
mod tests;
mod tokens;
mod workload;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["model", cell] => model(cell),
        ["costs"] => {
            println!("{}", costs::Costs::DECLARED.to_json());
            Ok(())
        }
        ["measure"] => measured(),
        ["silent", what] => measure::silent(what == "first").map_err(|error| error.report()),
        _ => Err("usage: dpc model CELL | costs | measure | silent hits|first".to_owned()),
    }
    .map_or_else(
        |error| {
            eprintln!("dpc: {error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn model(cell: &str) -> Result<(), String> {
    let cell = serde_json::from_str(cell).map_err(|error| format!("{cell}: {error}"))?;
    println!("{}", run::run(&cell)?);
    Ok(())
}

fn measured() -> Result<(), String> {
    let mut figures = measure::measure().map_err(|error| error.report())?;
    let silent = measure::is_silent().map_err(|error| error.to_string())?;
    figures["silent"] = silent.into();
    println!("{figures}");
    Ok(())
}
