//! `forebay replay`: performs the I/O of a trace.

mod feed;
mod report;
mod target;

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_block::{Error, ErrorKind, Result};
use forebay_device::signature;
use forebay_io::{Engine as IoEngine, Reactor};
use forebay_trace::Format;
use forebay_trace::replay::{Pace, PastEnd, ReplayOptions, Target, Writes, replay};

use super::super::{FAILURE, SUCCESS, Status};
use crate::state::report_with_help;
use feed::Feed;
use forebay_planner_cli::input::{Input, ReadArguments, names};
use forebay_terminal::number::whole;
use forebay_terminal::out;
use forebay_terminal::size::human_bytes;
use report::Measured;
use target::{Opened, ParsedTargets};
use tokio::signal::unix::{SignalKind, signal};

/// Perform the I/O of a trace, on the volumes of a configuration or over NBD
///
/// With --on CONFIG this process opens the cache and its volumes as `forebay serve` would, without
/// exports; no other program may use them meanwhile. The result then also has the engine's own time
/// per request, the hits, and the traffic of cache and backing devices.
///
/// EACH WRITE OF THE TRACE REPLACES THE DATA OF THE VOLUME. A trace with writes is refused without
/// --destroy-data; --skip-writes replays only its reads.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  forebay replay monday.fbt --on forebay.toml --destroy-data --verify
  forebay replay a.csv.gz b.csv.gz --on forebay.toml --map host0.1=db --map host0.2=logs \
   --speed 10 --destroy-data
  forebay replay db.fbt --on 'nbd+unix:///db?socket=/run/forebay/db.sock' --skip-writes \
   --depth 8 --json")]
pub(in crate::cli) struct Arguments {
    /// Files of the trace; the volumes of several files are used concurrently
    #[arg(required = true, value_name = "TRACE")]
    pub(super) files: Vec<PathBuf>,
    /// Target: a configuration file, or nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH,
    /// which may be given several times
    #[arg(long, required = true, value_name = "CONFIG|URI")]
    pub(super) on: Vec<String>,
    /// Replay this volume of the trace on that volume of the configuration (or export); may be
    /// given several times, and then for each replayed volume. Without it, a volume goes to the
    /// target of the same name. If there is none, volumes go to the targets in turn
    #[arg(long, value_name = "FROM=TO")]
    pub(super) map: Vec<Mapping>,
    /// max: as fast as requests complete; a number: at the recorded times, this many times as fast
    #[arg(long, default_value = "max", value_parser = parse_speed)]
    pub(super) speed: Pace,
    /// Most requests in flight, over all volumes
    #[arg(
        long,
        value_name = "NUMBER",
        default_value = "32",
        value_parser = whole::<u16>(1..=4096)
    )]
    pub(super) depth: u16,
    /// Treatment of requests past the end of their volume: fold (modulo its size, and report the
    /// number), skip, or refuse
    #[arg(long, value_name = "WHAT", default_value = "fold", value_parser = parse_past_end)]
    pub(super) past_end: PastEnd,
    /// Overwrite the data of the volumes
    #[arg(long, conflicts_with = "skip_writes")]
    pub(super) destroy_data: bool,
    /// Skip writes and discards
    #[arg(long)]
    pub(super) skip_writes: bool,
    /// At the end, read back all written data, and fail if it differs. Writes to the same 4 KiB
    /// then wait for each other; takes about 60 bytes of memory for each written 4 KiB
    #[arg(long, conflicts_with = "skip_writes")]
    pub(super) verify: bool,
    /// Format of the trace, if it is not recognized (see `forebay trace stats --help`)
    #[arg(long)]
    pub(super) format: Option<Format>,
    #[command(flatten)]
    pub(super) read: ReadArguments,
    /// Print the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// A volume of the trace and its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) from: String,
    pub(super) to: String,
}

impl FromStr for Mapping {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A volume of Forebay has no equals sign in its name; one of a trace may.
        let parts = text.rsplit_once('=').filter(|(_, to)| !to.is_empty());
        let (from, to) =
            parts.ok_or("write a volume of the trace, =, and where it goes: host0.1=db")?;
        Ok(Self {
            from: from.to_owned(),
            to: to.to_owned(),
        })
    }
}

fn parse_speed(text: &str) -> Result<Pace, &'static str> {
    if text == "max" {
        return Ok(Pace::Max);
    }
    let speed: Option<f64> = text.parse().ok();
    speed
        .filter(|speed| (1e-3..=1e6).contains(speed))
        .map(Pace::Recorded)
        .ok_or(
            "write max, or a number from 0.001 to 1000000: 1 for the recorded times, 10 for ten \
             times as fast",
        )
}

fn parse_past_end(text: &str) -> Result<PastEnd, &'static str> {
    match text {
        "fold" => Ok(PastEnd::Fold),
        "skip" => Ok(PastEnd::Skip),
        "refuse" => Ok(PastEnd::Refuse),
        _ => Err("write fold, skip or refuse"),
    }
}

pub(in crate::cli) fn run(arguments: &Arguments) -> Result<Status> {
    let on = ParsedTargets::parse(&arguments.on)?;
    let input = Input::open(&arguments.files, arguments.format, &arguments.read)?;
    let title = format!(
        "{} ({}) on {}",
        names(&arguments.files),
        input.format(),
        arguments.on.join(", ")
    );
    let options = ReplayOptions {
        pace: arguments.speed,
        depth: usize::from(arguments.depth),
        past_end: arguments.past_end,
        writes: match (arguments.destroy_data, arguments.skip_writes) {
            (true, _) => Writes::Replay,
            (_, true) => Writes::Skip,
            (false, false) => Writes::Refuse,
        },
        verify: arguments.verify,
    };
    let reactor = Reactor::new(on.io_engine().unwrap_or(IoEngine::Auto))?;
    let interrupted = watch_for_interrupt();
    let stop = Arc::clone(&interrupted);
    let map = arguments.map.clone();
    let measured = reactor.run(async move {
        let opened = on.open().await?;
        let measured = measure(&opened, input, map, &options, &stop).await;
        // Closes in any case; an error of the replay is reported first.
        let closed = opened.close().await;
        let measured = measured?;
        closed.map(|()| measured)
    })?;
    let interrupted = interrupted.load(Ordering::Relaxed);
    let concluded = conclude(&measured);
    if !arguments.json {
        // Without completed requests there is nothing to show but the error.
        if concluded.is_ok() || !measured.is_empty() {
            out::print(&report::text(&title, &measured, interrupted))?;
        }
        return concluded.map(|()| SUCCESS);
    }
    // One object in any case.
    let error = concluded.err();
    let all = report::json(&measured, interrupted, error.as_ref());
    out::print(&format!("{all}\n"))?;
    let Some(error) = error else {
        return Ok(SUCCESS);
    };
    out::note(&format!("forebay: {}", report_with_help(&error)));
    Ok(FAILURE)
}

async fn measure(
    opened: &Opened,
    input: Input,
    map: Vec<Mapping>,
    options: &ReplayOptions,
    stop: &AtomicBool,
) -> Result<Measured> {
    let names = opened.targets.iter().map(|target| target.name.clone());
    let mapped: Vec<String> = map.iter().map(|mapping| mapping.to.clone()).collect();
    let used = |target: &Target| mapped.is_empty() || mapped.contains(&target.name);
    let writes = matches!(options.writes, Writes::Replay);
    let mut feed = Feed::start(input, names.collect(), map)?;
    opened.check(used, writes)?;
    if writes {
        for target in opened.targets.iter().filter(|target| used(target)) {
            let size = human_bytes(target.device.info().size_bytes);
            out::note(&format!(
                "writes of the trace may replace data of {} ({size})",
                target.name
            ));
        }
    }
    let begin = opened.look();
    let next = async || feed.next().await;
    let stopped = || stop.load(Ordering::Relaxed);
    let mut report = replay(&opened.targets, options, next, stopped).await;
    let engine = begin.map(|begin| opened.since(&begin, report.requests));
    report.verify(&opened.targets, options.depth).await;
    let refused = match (&options.writes, &report.failed) {
        (Writes::Refuse, Some(failed)) if failed.kind() == ErrorKind::ReadOnly => {
            Some(holdings(&opened.targets).await)
        }
        _ => None,
    };
    let (routes, remarks) = feed.end();
    Ok(Measured {
        report,
        engine,
        routes,
        remarks,
        refused,
        depth: options.depth,
    })
}

/// Describes the targets and their contents, which a trace with writes would replace.
async fn holdings(targets: &[Target]) -> String {
    let mut all = Vec::new();
    for target in targets {
        let found = signature::probe(target.device.as_ref()).await;
        let found = found.map_or_else(
            |error| format!("something that cannot be read: {}", error.report()),
            |found| found.to_string(),
        );
        let size = human_bytes(target.device.info().size_bytes);
        all.push(format!("{} ({size}, holds {found})", target.name));
    }
    all.join(", ")
}

/// Checks whether the replay succeeded.
fn conclude(measured: &Measured) -> Result<()> {
    let report = &measured.report;
    if let Some(failed) = report.failed.clone() {
        if let Some(holdings) = &measured.refused {
            return Err(failed.context(format!(
                "the volumes hold data\n\
                 help: give --destroy-data to replace it, or --skip-writes to leave writes out; \
                 they are {holdings}",
            )));
        }
        return Err(match failed.kind() {
            ErrorKind::OutOfRange => {
                let help = "help: give --past-end fold or skip, or make the volume larger";
                failed.context(format!("replay\n{help}"))
            }
            _ if measured.is_empty() => failed,
            _ => failed.context("the replay has stopped"),
        });
    }
    let wrong = report.verified.as_ref();
    let wrong = wrong.filter(|verified| verified.wrong > 0);
    wrong.map_or(Ok(()), |verified| {
        let first = verified.first_wrong.clone().unwrap_or_default();
        let what = format!(
            "{} of the {} written sectors DO NOT HAVE THE WRITTEN DATA\n\
             help: report this, with the trace; the first is {first}",
            verified.wrong, verified.sectors
        );
        Err(Error::new(ErrorKind::Corrupt, what))
    })
}

/// Returns a flag that the first Ctrl-C or SIGTERM sets; the second ends the process.
fn watch_for_interrupt() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    // If this fails, a signal ends the process; the next start recovers.
    let _ = std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async {
                let kinds = [SignalKind::interrupt(), SignalKind::terminate()];
                let [Ok(mut interrupt), Ok(mut terminate)] = kinds.map(signal) else {
                    return;
                };
                let mut next = async || {
                    tokio::select! {
                        _ = interrupt.recv() => libc::SIGINT,
                        _ = terminate.recv() => libc::SIGTERM,
                    }
                };
                next().await;
                set.store(true, Ordering::Relaxed);
                let number = next().await;
                std::process::exit(128 + number);
            });
        });
    flag
}
