//! `cargo xtask study`: what the papers claim, measured or simulated.

mod applications;
mod caiti;
mod check;
mod claims;
mod dpc;
mod jobs;
mod mapperx;
mod opencas;
mod paper_figures;
mod sections;
mod simulation;
mod table;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use clap::{Args, Subcommand};

use crate::bench::{Outcome, built_program, conclude, run_for_output};
use crate::claims::{Report, figure, machine};
use crate::pages::{ADACACHE, Grid, Header, claims_grid};
use crate::steps::Verdict;

pub(crate) use check::check;

/// Studies, each with its baselines in the same run.
#[derive(Debug, Subcommand)]
pub(crate) enum Study {
    /// AdaCache's table: fixed block sizes, its own rules and ours; writes docs/results/adacache.md
    Adacache(Options),
    /// Databases and file mixes on ext4 over a table on emulated persistent memory, alone and
    /// through each policy, and the data that a kill leaves. Writes docs/results/applications.md.
    /// Half an hour (needs root)
    Applications(applications::Options),
    /// Caiti's response times: writes to a table on emulated persistent memory, alone and through
    /// each policy, measured, and modelled with more cores; writes docs/results/caiti.md. Twenty
    /// minutes, three for a look (`--quick`), on an idle machine
    Caiti(caiti::Options),
    /// Re-run deterministic figures of the pages, and fail if one differs from the recorded grids
    Check,
    /// The distributed page cache beside tokens, cooperative caching and one node with all the
    /// memory; writes docs/results/dpc.md
    Dpc(dpc::Options),
    /// The bit-tree: what a crash has written back, and what knowing it costs; writes
    /// docs/results/mapperx.md
    Mapperx(mapperx::Options),
    /// Open CAS's rule for metadata beside ours: bytes, and bandwidth by the devices' time alone;
    /// writes docs/results/opencas.md
    Opencas(opencas::Options),
    /// Render the pages from the grids under docs/results/data; runs no study
    Render {
        /// Write nothing; fail if a page differs from its template and grids
        #[arg(long)]
        check: bool,
    },
}

/// Options of a study.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// A folder with the public traces of Alibaba, MSR Cambridge and SYSTOR '17 under their usual
    /// names, anywhere below it; in place of generated ones
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Requests of each volume of the paper's selection; the paper takes 10 million
    #[arg(long, value_name = "NUMBER", default_value_t = jobs::REQUESTS)]
    requests: u64,
    /// Fewer requests of the long traces, in about two minutes, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs a study. Fails when it could not be run or a claim of ours does not hold.
pub(crate) fn run(root: &Path, study: &Study) -> ExitCode {
    let held = match study {
        Study::Adacache(options) => adacache(root, options),
        Study::Applications(options) => applications::study(root, options),
        Study::Caiti(options) => caiti::study(root, options),
        Study::Dpc(options) => dpc::run(root, options),
        Study::Mapperx(options) => mapperx::run(root, options),
        Study::Opencas(options) => opencas::study(root, options),
        Study::Check => check(root).map(|checked| checked.verdict == Verdict::Passed),
        Study::Render { check: true } => crate::pages::check_all(root),
        Study::Render { check: false } => crate::pages::render_all(root),
    };
    match held {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("study: {error}");
            ExitCode::FAILURE
        }
    }
}

fn adacache(root: &Path, options: &Options) -> Outcome<bool> {
    let began = Instant::now();
    let program = built_program(root, &jobs::PROGRAM)?;
    // The commit of the build: files may be edited meanwhile.
    let commit = commit(root)?;
    let jobs = jobs::all(
        root,
        options.traces.as_deref(),
        options.requests,
        options.quick,
    )?;
    let traces = jobs::run(&program, jobs)?;
    let header = Header {
        machine: machine(),
        commit,
        date: run_for_output(date())?,
        command: command(options),
        minutes: began.elapsed().as_secs_f64() / 60.0,
    };
    let report = Report {
        quick: options.quick,
        claims: claims::ours(&traces),
        rows: traces,
    };
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("adacache-quick.md"),
        false => ADACACHE.path(root),
    });
    let mut data = sections::grids(&header, &report.rows);
    if options.quick {
        data.0.extend(no_speed());
    }
    ADACACHE.write(&out, &data, options.quick)?;
    conclude(&report, options.json.as_deref())
}

/// Grids of `cargo xtask bench policy` without rows, for a page that the benchmark has not
/// extended.
fn no_speed() -> Vec<Grid> {
    let mut values = Grid::new("speed-values", &["name", "value"]);
    for name in ["speed_machine", "speed_references", "speed_mib"] {
        values.row([name, "-"].map(String::from));
    }
    let claims = claims_grid("speed-claims", &[], figure);
    let decisions = Grid::new("speed-decisions", &["rules"]);
    let simulators = Grid::new("speed-simulators", &["simulator"]);
    vec![values, claims, decisions, simulators]
}

fn date() -> Command {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%d"]);
    date
}

/// The commit that is measured, and whether files differ from it.
fn commit(root: &Path) -> Outcome<String> {
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        run_for_output({
            git.current_dir(root).args(arguments);
            git
        })
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let changed: Vec<&str> = changed
        .lines()
        .filter(|line| !line.contains("docs/results/"))
        .collect();
    Ok(match changed[..] {
        [] => commit,
        _ => format!("{commit} with changes"),
    })
}

/// As it was given, less what says where results go.
fn command(options: &Options) -> String {
    let mut command = "cargo xtask study adacache".to_owned();
    if options.traces.is_some() {
        command += " --traces DIR";
    }
    if options.requests != jobs::REQUESTS {
        command += &format!(" --requests {}", options.requests);
    }
    if options.quick {
        command += " --quick";
    }
    command
}
