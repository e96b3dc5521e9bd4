//! `cargo xtask soak`: long runs that try to lose data, or to stop the daemon. Each runs a test or
//! a script that can also run alone, and collects the lines `ROW {json}` that it prints.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::claims::{Claim, Kind, Report, Table, figure};

/// Number of kills for each durability.
const KILLS: u64 = 50;

/// Long runs.
#[derive(Debug, Subcommand)]
pub(crate) enum Soak {
    /// Power cuts in the guest: everything that dm-log-writes recorded, cut at every flush and mark
    Powercut {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        size: Size,
    },
    /// `kill -9` under a verifying load, over NBD and under ext4
    Kill {
        #[command(flatten)]
        options: Options,
        #[command(flatten)]
        size: Size,
        /// Kills for each durability, and half as many under ext4
        #[arg(long, default_value_t = KILLS)]
        count: u64,
    },
    /// A writer that dirties twice the memory of the writer and the daemon
    Reclaim(Options),
    /// The kernel's NBD client in the guest: O_DSYNC counted at the medium, file systems
    Guest(Options),
}

impl Soak {
    /// Returns whether the soak boots a guest.
    pub(crate) fn needs_guest(&self) -> bool {
        matches!(self, Self::Powercut { .. } | Self::Guest(_))
    }
}

/// Size of a soak that has a short form.
#[derive(Debug, Args)]
pub(crate) struct Size {
    /// A short and small run, in about two minutes. Not a result
    #[arg(long)]
    quick: bool,
}

/// Options of every soak.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The rows that a run printed, and whether it succeeded.
pub(crate) struct Run {
    pub(crate) rows: Vec<Value>,
    pub(crate) skipped: bool,
    pub(crate) success: bool,
}

/// Runs a soak. Fails if it cannot run or a claim does not hold.
pub(crate) fn run(root: &Path, soak: &Soak) -> ExitCode {
    let report = match attempt(root, soak) {
        Ok(Some(report)) => report,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("soak: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (Soak::Powercut { options, .. }
    | Soak::Kill { options, .. }
    | Soak::Reclaim(options)
    | Soak::Guest(options)) = soak;
    if let Some(path) = &options.json
        && let Err(error) = report.write(path)
    {
        eprintln!("soak: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if report.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs a soak and prints its claims. Returns `None`, and prints the reason, if it cannot run here.
///
/// # Errors
/// Returns an error if its command cannot be started or prints something unreadable.
pub(crate) fn attempt(root: &Path, soak: &Soak) -> Outcome {
    let report = match soak {
        Soak::Powercut { size, .. } => powercut(root, size.quick),
        Soak::Kill { size, count, .. } => kill(root, size.quick, *count),
        Soak::Reclaim(_) => reclaim(root),
        Soak::Guest(_) => guest(root),
    }?;
    if let Some(report) = &report {
        if report.quick {
            println!("\n--quick: smaller than a result");
        }
        println!();
        report.print_claims();
    }
    Ok(report)
}

/// The soaks of the nightly run in full size, each with its name.
pub(crate) fn nightly() -> [(&'static str, Soak); 4] {
    let options = || Options { json: None };
    let size = || Size { quick: false };
    let powercut = Soak::Powercut {
        options: options(),
        size: size(),
    };
    let kill = Soak::Kill {
        options: options(),
        size: size(),
        count: KILLS,
    };
    [
        ("powercut", powercut),
        ("kill", kill),
        ("reclaim", Soak::Reclaim(options())),
        ("guest", Soak::Guest(options())),
    ]
}

/// Runs a command in the repository's root, prints its output, and collects its rows.
pub(crate) fn gather(root: &Path, command: &mut Command) -> Result<Run, String> {
    let describe = |error: std::io::Error| format!("{command:?}: {error}");
    // Tests print to standard error, scripts to standard output. One pipe takes both.
    let (reader, writer) = std::io::pipe().map_err(describe)?;
    let describe = |error: std::io::Error| error.to_string();
    let mut child = command
        .current_dir(root)
        .env("FOREBAY_ROWS", "1")
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(describe)?)
        .stderr(writer)
        .spawn()
        .map_err(describe)?;
    // The command holds the pipe's other end, too, and must close it.
    *command = Command::new("true");
    let mut run = Run {
        rows: Vec::new(),
        skipped: false,
        success: false,
    };
    for line in BufReader::new(reader).lines() {
        let line = line.map_err(describe)?;
        match line.strip_prefix("ROW ") {
            Some(row) => {
                let row = serde_json::from_str(row);
                run.rows
                    .push(row.map_err(|error| format!("{line}: {error}"))?);
            }
            None => {
                run.skipped |= line.starts_with("SKIPPED");
                println!("{line}");
            }
        }
    }
    run.success = child.wait().map_err(describe)?.success();
    Ok(run)
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(0.0)
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or("")
}

fn claim(
    name: impl Into<String>,
    ours: f64,
    unit: &str,
    kind: Kind,
    bar: impl Into<String>,
    holds: bool,
) -> Claim {
    Claim {
        name: name.into(),
        paper_or_peer: None,
        ours,
        unit: unit.into(),
        kind,
        bar: bar.into(),
        holds,
    }
}

/// Returns the claim that the whole run ended without a failure.
fn ended(name: &str, success: bool) -> Claim {
    claim(
        format!("{name}/ended_well"),
        f64::from(u8::from(success)),
        "yes",
        Kind::Counted,
        "exactly 1",
        success,
    )
}

fn script(root: &Path, name: &str) -> Command {
    Command::new(root.join("tests/guest").join(name))
}

/// Returns a command for tests of the package of tests: a binary, and the names of tests or their
/// beginnings.
pub(crate) fn tests(binary: &str, threads: usize, names: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    // With the features of the whole workspace, so that nothing is built twice.
    command.args(["test", "--quiet", "--locked", "--workspace"]);
    command.args(["--test", binary, "--", "--nocapture"]);
    command.arg(format!("--test-threads={threads}"));
    command.args(names);
    command
}

fn test(names: &[&str]) -> Command {
    tests("kill", 1, names)
}

/// A report. `None` if the soak cannot run here.
pub(crate) type Outcome = Result<Option<Report<Value>>, String>;

fn powercut(root: &Path, quick: bool) -> Outcome {
    let mut command = script(root, "powercut.sh");
    command.args(quick.then_some("--quick"));
    let run = gather(root, &mut command)?;
    let columns = [
        ("setup", "check"),
        ("acknowledged", "acknowledged_writes"),
        ("cut points", "cut_points"),
        ("subsets", "subsets"),
        ("torn FUA", "torn"),
        ("written back", "written_back"),
        ("planted FUA", "planted_fua_found"),
        ("planted flush", "planted_flush_found"),
        ("violations", "violations"),
    ];
    print_rows(&run.rows, &columns);
    let mut claims: Vec<_> = (run.rows.iter())
        .map(|row| {
            let holds = row["holds"] == true && number(row, "violations") == 0.0;
            claim(
                format!("powercut/{}/violations", text(row, "check")),
                number(row, "violations"),
                "violations",
                Kind::Counted,
                "exactly 0",
                holds,
            )
        })
        .collect();
    let planted = run.rows.iter().fold(0.0, |sum, row| {
        sum + number(row, "planted_fua_found") + number(row, "planted_flush_found")
    });
    claims.push(claim(
        "powercut/planted_losses_found",
        planted,
        "losses",
        Kind::Counted,
        "at least 1",
        planted >= 1.0,
    ));
    claims.push(ended("powercut", run.success));
    Ok(Some(Report {
        quick,
        claims,
        rows: run.rows,
    }))
}

fn kill(root: &Path, quick: bool, count: u64) -> Outcome {
    let count = if quick { count.min(5) } else { count };
    let mut rows = Vec::new();
    let (mut success, mut skipped) = (true, false);
    for (names, kills) in [
        ("no_acknowledged_write_is_lost", count),
        ("ext4_survives", count.div_ceil(2)),
    ] {
        let mut command = test(&[names]);
        command.env("FOREBAY_KILLS", kills.to_string());
        let run = gather(root, &mut command)?;
        rows.extend(run.rows);
        success &= run.success;
        skipped |= run.skipped;
    }
    let mut table = Table::new(&["through", "durability", "kills", "acknowledged", "wrong"]);
    let mut claims = Vec::new();
    for (through, durability, wanted) in [
        ("nbd", "sync", count),
        ("nbd", "flush", count),
        ("nbd, bit-tree", "flush", count),
        ("nbd, transit", "flush", count),
        ("ext4", "sync", count.div_ceil(2)),
        ("ext4", "flush", count.div_ceil(2)),
    ] {
        let of =
            |row: &&Value| text(row, "check") == through && text(row, "durability") == durability;
        let rounds: Vec<_> = rows.iter().filter(of).collect();
        if rounds.is_empty() && skipped {
            println!("SKIPPED {through}, durability {durability}: see above");
            continue;
        }
        let sum = |key| rounds.iter().map(|row| number(row, key)).sum::<f64>();
        table.row(vec![
            through.into(),
            durability.into(),
            rounds.len().to_string(),
            figure(sum("acknowledged")),
            figure(sum("wrong")),
        ]);
        let holds = sum("wrong") == 0.0 && rounds.len() as u64 == wanted;
        claims.push(claim(
            format!("kill/{through}/{durability}/mismatches"),
            sum("wrong"),
            "mismatches",
            Kind::Counted,
            format!("exactly 0 in {wanted} kills"),
            holds,
        ));
    }
    println!();
    table.print();
    claims.push(ended("kill", success));
    Ok(Some(Report {
        quick,
        claims,
        rows,
    }))
}

fn reclaim(root: &Path) -> Outcome {
    let run = gather(root, &mut test(&["memory_is_reclaimed"]))?;
    if run.skipped {
        return Ok(None);
    }
    let columns = [
        ("", "check"),
        ("dirtied, MiB", "dirtied_mib"),
        ("limit, MiB", "limit_mib"),
        ("peak, MiB", "peak_mib"),
        ("took, s", "took_s"),
        ("longest step, s", "longest_step_s"),
        ("wrong files", "wrong_files"),
    ];
    print_rows(&run.rows, &columns);
    let longest = run.rows.first().map(|row| number(row, "longest_step_s"));
    let claims = vec![
        claim(
            "reclaim/longest_stall",
            longest.unwrap_or(f64::INFINITY),
            "s",
            Kind::Measured,
            "at most 30",
            longest.is_some_and(|longest| longest <= 30.0),
        ),
        ended("reclaim", run.success),
    ];
    Ok(Some(Report {
        quick: false,
        claims,
        rows: run.rows,
    }))
}

fn guest(root: &Path) -> Outcome {
    let run = gather(root, &mut script(root, "nbd.sh"))?;
    let counted: Vec<_> = (run.rows.iter())
        .filter(|row| row["writes"].is_number())
        .cloned()
        .collect();
    let columns = [
        ("writes", "check"),
        ("number", "writes"),
        ("device", "device"),
        ("flushes at the medium", "medium_flushes"),
        ("flushes and FUA, own count", "own_flushes_and_fua"),
        ("each covered", "covered"),
    ];
    print_rows(&counted, &columns);
    let mut claims: Vec<_> = (run.rows.iter())
        .map(|row| {
            let (ours, bar) = if row["writes"].is_number() {
                let below = row["must_be_covered"] != true;
                let bar = if below { "less than" } else { "at least" };
                let key = match text(row, "medium") {
                    "loop" => "medium_flushes",
                    _ => "own_flushes_and_fua",
                };
                (
                    number(row, key),
                    format!("{bar} {}", figure(number(row, "writes"))),
                )
            } else {
                (1.0, "exactly 1".into())
            };
            claim(
                format!("guest/{}", text(row, "check").replace(' ', "_")),
                ours,
                if row["writes"].is_number() {
                    "flushes"
                } else {
                    "yes"
                },
                Kind::Counted,
                bar,
                row["holds"] == true,
            )
        })
        .collect();
    claims.push(ended("guest", run.success));
    Ok(Some(Report {
        quick: false,
        claims,
        rows: run.rows,
    }))
}

/// Prints rows as a table: (head, key).
fn print_rows(rows: &[Value], columns: &[(&str, &str)]) {
    let heads: Vec<_> = columns.iter().map(|(head, _)| *head).collect();
    let mut table = Table::new(&heads);
    for row in rows {
        let cell = |(_, key): &(&str, &str)| match &row[*key] {
            Value::String(text) => text.clone(),
            Value::Number(number) => figure(number.as_f64().unwrap_or(0.0)),
            other => other.to_string(),
        };
        table.row(columns.iter().map(cell).collect());
    }
    println!();
    table.print();
}
