//! Response times of random writes to a table on emulated persistent memory, alone and through
//! transit and staging caches: docs/results/caiti.md.

mod claims;
mod modelled;
mod page;
mod plot;
mod runs;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, run_for_output};
use crate::claims::{Report, machine};
use crate::pages::{CAITI, Header};
use modelled::Service;
use runs::{Model, Run};

/// Systems of the comparison: raw memory, the table, and the table under each policy.
const SYSTEMS: [&str; 9] = [
    "pmem",
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
/// Writes under way at a time, at saturation.
const DEPTH: u32 = 32;
/// Others.
const DEPTHS: [u32; 4] = [1, 8, 128, 1024];
/// Ways to wait for the emulated memory.
const WAITINGS: [&str; 2] = ["spin", "yield"];
/// The program.
const EXAMPLE: [&str; 4] = ["--package", "forebay-transit", "--example", "caiti"];
/// Flushes after so much, KiB.
const FLUSHES_KIB: [u32; 4] = [512, 4096, 32_768, 131_072];
/// Flushes come so far apart in the runs that are long enough, and these take so long, seconds.
const FLUSH_INTERVAL: &str = "5";
const LONG_RUN: &str = "6.5";
/// The same in the runs that show where time goes, which are shorter.
const PARTS_FLUSH: &str = "0.25";

/// Requests so far apart that a thread that evicts sleeps before most.
const FAR_APART: &str = "open:20000";

/// Options of the study.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Runs of each at saturation and at half of it, one system after the other in every round
    #[arg(long, value_name = "NUMBER", default_value_t = 11)]
    rounds: usize,
    /// Length of each of these runs. The kernel throttles real-time programs that run for a second
    #[arg(long, value_name = "SECONDS", default_value_t = 0.7)]
    seconds: f64,
    /// One short round that spins while it waits, without sweeps and pages in docs: for a look
    #[arg(long)]
    quick: bool,
    /// `--json` file of an earlier run under load: breakdown, model and page are made anew
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    measured: Option<PathBuf>,
    /// Where the page goes, with a picture beside it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Results of the runs under load.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Measured {
    commit: String,
    rounds: usize,
    seconds: f64,
    minutes: f64,
    runs: Vec<Run>,
}

/// All that the page is made of.
#[derive(Debug, Default, Serialize)]
struct Results {
    measured: Measured,
    /// One request at a time, with a clock in the cache.
    parts: Vec<Run>,
    service: Service,
    models: Vec<Model>,
    declared: Value,
}

/// A study under way.
struct Study<'a> {
    program: &'a Path,
    seconds: f64,
    runs: Vec<Run>,
}

impl Study<'_> {
    /// Measures, and keeps what comes out for `part`.
    fn measure(&mut self, part: &str, system: &str, load: &str, more: &[String]) -> Outcome<&Run> {
        eprintln!("{part}: {system}, {load} {}", more.join(" "));
        let mut words = vec![
            "run".into(),
            system.into(),
            load.into(),
            self.seconds.to_string(),
        ];
        words.extend_from_slice(more);
        let run: Run = runs::run(self.program, &words)?;
        self.runs.push(Run {
            part: part.into(),
            ..run
        });
        Ok(self.runs.last().expect("it was pushed"))
    }

    /// Every system at saturation, then at half of what the table can take.
    fn round(&mut self, round: usize, waiting: &str) -> Outcome<()> {
        let mut systems = SYSTEMS;
        // No system always comes after the same other one.
        systems.rotate_left(round % SYSTEMS.len());
        let more = [format!("wait={waiting}"), format!("seed={}", round + 1)];
        let mut saturation = 0.0;
        for system in systems {
            let load = format!("closed:{DEPTH}");
            let run = self.measure(&format!("full {waiting}"), system, &load, &more)?;
            if system == "btt" {
                saturation = run.iops;
            }
        }
        let load = format!("open:{:.0}", saturation / 2.0);
        for system in systems {
            self.measure(&format!("half {waiting}"), system, &load, &more)?;
        }
        Ok(())
    }

    /// Runs the measurements that the model and the breakdown need.
    fn service(&mut self, half: &str) -> Outcome<()> {
        let full = format!("closed:{DEPTH}");
        let meter = "meter=1".to_owned();
        for system in ["null", "pmem", "btt", "workers"] {
            self.measure("service", system, &full, &[])?;
        }
        for (part, load) in [("asleep", FAR_APART), ("awake", "closed:1")] {
            self.measure(part, "workers", load, std::slice::from_ref(&meter))?;
        }
        for system in STAGING.into_iter().chain(["caiti-without-bypass"]) {
            self.measure("service", system, &full, std::slice::from_ref(&meter))?;
        }
        self.measure("service", "caiti", half, std::slice::from_ref(&meter))?;
        for system in STAGING.into_iter().chain(["caiti-without-eviction"]) {
            self.measure("fill", system, &full, &[meter.clone(), "fill=1".into()])?;
        }
        Ok(())
    }

    /// Where the time of one request at a time goes.
    fn parts(&mut self) -> Outcome<()> {
        for system in SYSTEMS {
            let more = [format!("flush={PARTS_FLUSH}"), "priority=0".into()];
            self.measure("parts", system, "closed:1", &more)?;
            let [flush, priority] = more;
            self.measure(
                "reads",
                system,
                "closed:1",
                &[flush, priority, "reads=1".into()],
            )?;
        }
        Ok(())
    }

    /// One run of each of many.
    fn sweeps(&mut self, half: &str) -> Outcome<()> {
        for system in SYSTEMS {
            for depth in DEPTHS {
                self.measure(
                    &format!("depth {depth}"),
                    system,
                    &format!("closed:{depth}"),
                    &[],
                )?;
            }
            for kib in FLUSHES_KIB {
                let more = format!("flush-every={kib}");
                self.measure(
                    &format!("flush {kib}"),
                    system,
                    &format!("closed:{DEPTH}"),
                    &[more],
                )?;
            }
        }
        let seconds = std::mem::replace(&mut self.seconds, LONG_RUN.parse().expect("a number"));
        for system in SYSTEMS {
            let more = [
                "timeline=1",
                "priority=0",
                &format!("flush={FLUSH_INTERVAL}"),
            ];
            self.measure("timeline", system, half, &more.map(str::to_owned))?;
        }
        self.seconds = seconds;
        Ok(())
    }
}

/// Measures under load.
fn measured(root: &Path, options: &Options) -> Outcome<Measured> {
    let began = Instant::now();
    let program = built_program(root, &EXAMPLE)?;
    let commit = commit(root)?;
    let (rounds, waitings) = match options.quick {
        true => (1, &WAITINGS[..1]),
        false => (options.rounds.max(1), &WAITINGS[..]),
    };
    let mut study = Study {
        program: &program,
        seconds: options.seconds,
        runs: Vec::new(),
    };
    for round in 0..rounds {
        for waiting in waitings {
            study.round(round, waiting)?;
        }
    }
    let half = half_load(&study.runs);
    for _ in 0..if options.quick { 1 } else { 3 } {
        study.service(&half)?;
    }
    if !options.quick {
        study.sweeps(&half)?;
    }
    Ok(Measured {
        commit,
        rounds,
        seconds: options.seconds,
        minutes: began.elapsed().as_secs_f64() / 60.0,
        runs: study.runs,
    })
}

/// Half of what the table takes.
fn half_load(all: &[Run]) -> String {
    let saturation = runs::cell(all, "full spin", "btt").median(|run| run.iops);
    format!("open:{:.0}", saturation / 2.0)
}

/// Reads the results of an earlier run under load.
fn earlier(path: &Path) -> Outcome<Measured> {
    let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let mut report: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
    let measured = report["rows"][0]["measured"].take();
    serde_json::from_value(measured).map_err(|error| failed(&error))
}

/// Runs the study. Whether the claims hold.
pub(super) fn study(root: &Path, options: &Options) -> Outcome<bool> {
    let began = Instant::now();
    let measured = match &options.measured {
        Some(path) => earlier(path)?,
        None => measured(root, options)?,
    };
    // The same with a clock in the cache, which the model does not look at.
    let with_parts = [&EXAMPLE[..], &["--features", "forebay-transit/parts"]].concat();
    let program = built_program(root, &with_parts)?;
    let commit = commit(root)?;
    let mut study = Study {
        program: &program,
        seconds: options.seconds,
        runs: Vec::new(),
    };
    study.parts()?;
    let declared: Value = runs::run(&program, &["costs".into()])?;
    let look: Value = runs::run(&program, &["look".into()])?;
    let service = Service::of(&measured.runs, look["look_ns"].as_f64().unwrap_or_default());
    let half = half_load(&measured.runs);
    let results = Results {
        models: modelled::run(&program, &service, &declared, &half, options.quick)?,
        measured,
        parts: study.runs,
        service,
        declared,
    };
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("caiti-quick.md"),
        false => CAITI.path(root),
    });
    let waitings = match options.quick {
        true => &WAITINGS[..1],
        false => &WAITINGS,
    };
    let claims = claims::claims(&results, waitings);
    let header = Header {
        machine: machine(),
        commit,
        date: run_for_output(date())?,
        command: match options.measured {
            Some(_) => "cargo xtask study caiti --measured FILE".into(),
            None => "cargo xtask study caiti".into(),
        },
        minutes: began.elapsed().as_secs_f64() / 60.0,
    };
    if !options.quick {
        let picture = out.with_file_name("caiti-timeline.svg");
        let timelines = plot::timelines(&results.measured.runs, "timeline");
        let written = std::fs::write(&picture, timelines);
        written.map_err(|error| format!("{}: {error}", picture.display()))?;
    }
    let grids = page::grids(&header, &claims, &results);
    CAITI.write(&out, &grids, options.quick)?;
    let report = Report {
        quick: options.quick,
        claims,
        rows: vec![results],
    };
    conclude(&report, options.json.as_deref())
}
