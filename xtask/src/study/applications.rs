//! Programs on ext4 on a loop device over a table on emulated persistent memory, alone and through
//! transit and staging caches: docs/results/applications.md.

mod cells;
mod claims;
mod db_bench;
mod page;
mod plot;
mod results;
mod stack;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;

use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, loops, require, run_for_output};
use crate::claims::{Report, machine};
use crate::pages::{APPLICATIONS, Header};
use crate::soak;
use cells::Programs;
use results::{Kills, Pass, Results};
use stack::Stack;

/// Systems of the comparison: the table, and the table under each policy.
const SYSTEMS: [&str; 8] = [
    "btt",
    "pmbd",
    "pmbd-70",
    "lru",
    "co-active",
    "caiti",
    "caiti-without-eviction",
    "caiti-without-bypass",
];
/// Those that keep what is written until there is no room.
const STAGING: [&str; 4] = ["pmbd", "pmbd-70", "lru", "co-active"];
/// How often each system is killed under databases and files.
const KILLS: u64 = 3;

/// Options of the study.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Passes over all systems, one system after the other in each
    #[arg(long, value_name = "NUMBER", default_value_t = 3)]
    rounds: usize,
    /// Of each cell that is not a load
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    seconds: f64,
    /// File of the results so far. The study adds results as they come, and does not repeat those
    /// that it has. So a study can be run in parts, when the machine is quiet
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    runs: Option<PathBuf>,
    /// One short round of a few cells, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// Where the page goes, and beside it the plot
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the study. Whether the claims hold.
pub(super) fn study(root: &Path, options: &Options) -> Outcome<bool> {
    if let Some(reason) = loops::unavailable() {
        println!("SKIPPED: study applications: {reason}");
        return Ok(true);
    }
    require(&["db_bench", "mkfs.ext4", "losetup", "setpriv"])?;
    let programs = Programs {
        daemon: built_program(root, &["--package", "forebay"])?,
        load: built_program(
            root,
            &["--package", "forebay-tests", "--bin", "applications"],
        )?,
    };
    let commit = commit(root)?;
    let (rounds, seconds) = match options.quick {
        true => (1, options.seconds.min(0.5)),
        false => (options.rounds.max(1), options.seconds),
    };
    let mut results = Results::of(options.runs.as_deref())?;
    for round in 0..rounds {
        let mut systems = SYSTEMS;
        // No system always comes after the same other one.
        systems.rotate_left(round * 3 % SYSTEMS.len());
        for system in systems {
            if results.has(system, round) {
                continue;
            }
            let pass = one_pass(&programs, system, round, seconds, options.quick, &commit)?;
            results.passes.push(pass);
            results.keep(options.runs.as_deref())?;
        }
    }
    if results.kills.is_none() {
        results.kills = Some(killed(
            root,
            &programs,
            if options.quick { 1 } else { KILLS },
        )?);
        results.keep(options.runs.as_deref())?;
    }
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => programs.load.with_file_name("applications-quick.md"),
        false => APPLICATIONS.path(root),
    });
    let plot = out.with_extension("svg");
    let written = std::fs::write(&plot, plot::render(&results));
    written.map_err(|error| format!("{}: {error}", plot.display()))?;
    let claims = claims::claims(&results);
    let header = Header {
        machine: machine(),
        commit: results.commits(),
        date: run_for_output(date())?,
        command: "cargo xtask study applications".into(),
        minutes: results.passes.iter().map(|pass| pass.took_s).sum::<f64>() / 60.0,
    };
    let grids = page::grids(&header, &results, &claims, seconds);
    APPLICATIONS.write(&out, &grids, options.quick)?;
    let report = Report {
        quick: options.quick,
        claims,
        rows: results.passes,
    };
    conclude(&report, options.json.as_deref())
}

/// Every cell on one system, on media that are made anew.
fn one_pass(
    programs: &Programs,
    system: &str,
    round: usize,
    seconds: f64,
    quick: bool,
    commit: &str,
) -> Outcome<Pass> {
    let began = Instant::now();
    let (taken, owner) = (results::niced_s()?, results::steal_s()?);
    let mut stack = Stack::new(&programs.daemon, system)?;
    let mut cells = Vec::new();
    for cell in cells::all(quick) {
        eprintln!("round {}, {system}: {}", round + 1, cell.name());
        let run = cell.run(programs, &mut stack, seconds, round as u64 + 1);
        cells.push(run.map_err(|error| format!("{system}, {}: {error}", cell.name()))?);
    }
    stack.end()?;
    Ok(Pass {
        system: system.into(),
        round,
        commit: commit.into(),
        took_s: began.elapsed().as_secs_f64(),
        niced_s: results::niced_s()? - taken,
        steal_s: results::steal_s()? - owner,
        cells,
    })
}

/// Runs the test that kills each system under databases and files `kills` times, and the test that
/// plants a fault.
fn killed(root: &Path, programs: &Programs, kills: u64) -> Outcome<Kills> {
    let names = ["applications::"];
    let mut command = soak::tests("kill", 1, &names);
    command.env("FOREBAY_KILLS", kills.to_string());
    command.env("FOREBAY_BIN", &programs.daemon);
    let run = soak::gather(root, &mut command)?;
    Ok(Kills {
        each: kills,
        skipped: run.skipped,
        ended_well: run.success,
        rows: run.rows,
    })
}
