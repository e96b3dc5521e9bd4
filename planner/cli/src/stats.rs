//! `forebay trace stats`: statistics of a trace.

use std::path::PathBuf;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_trace::Format;
use forebay_trace::stats::{Stats, StatsOptions, Summary, Totals, VolumeSummary};
use serde_json::{Value, json};

use super::input::{Input, ReadArguments, names};
use forebay_terminal::number::whole;
use forebay_terminal::out;
use forebay_terminal::size::{Size, human_bytes, human_count, human_duration};
use forebay_terminal::table::Table;

/// Least memory for a working set, bytes: some 2,000 entries, so that an estimate has an error of a
/// few percent.
const MEMORY_BYTES: u64 = 64 << 10;

/// Show statistics of a trace: requests, bytes, sizes, working set, volumes
///
/// Several files are one trace: their volumes are used at the same time, by the times in the files.
/// The format is detected from the first bytes. Files compressed with gzip, xz, zstd and bzip2 are
/// read directly.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Files of the trace
    #[arg(required = true, value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Format of the trace. Recognized if it is left out. One of native, msr, alibaba, tencent,
    /// systor, spc, ssdsim, replayer, flashsim, vscsi, vscsi-csv, vscsi-csv-us, oracle-general,
    /// lis, block-ids, smartphone, blkparse, fio or fiu
    #[arg(long)]
    pub(super) format: Option<Format>,
    #[command(flatten)]
    pub(super) read: ReadArguments,
    /// Unit of the working set, a power of two from 512
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    pub(super) page_size: Size,
    /// Memory limit for the working set; a larger one is estimated
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub(super) memory: Size,
    /// Number of volumes to show, those with the most bytes
    #[arg(long, value_name = "NUMBER", default_value = "10",
        value_parser = whole::<usize>(0..=u64::MAX))]
    pub(super) top: usize,
    /// Print everything, all volumes too, as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Prints statistics of a trace.
///
/// # Errors
/// A file that cannot be read or written, or that holds no trace.
pub fn run(arguments: &Arguments) -> Result<()> {
    let page_bytes = arguments.page_size.0;
    if !page_bytes.is_power_of_two() || page_bytes < 512 {
        let said = "--page-size is not a power of two from 512\nhelp: write --page-size 4K";
        return Err(Error::new(ErrorKind::InvalidInput, said));
    }
    if arguments.memory.0 < MEMORY_BYTES {
        let said = "an estimate needs at least 64 KiB of memory\nhelp: write --memory 64K or more";
        return Err(Error::new(ErrorKind::InvalidInput, said));
    }
    let mut input = Input::open(&arguments.files, arguments.format, &arguments.read)?;
    let mut stats = Stats::new(StatsOptions {
        page_bytes,
        max_memory_bytes: usize::try_from(arguments.memory.0).unwrap_or(usize::MAX),
    });
    let mut batch = Vec::new();
    while input.fill(&mut batch)? {
        stats.add(&batch);
    }
    // A recording without requests is valid.
    if input.format() != Format::Native {
        input.check_not_empty()?;
    }
    let summary = stats.summary(input.volumes());
    if arguments.json {
        let all = as_json(&summary, &input);
        return out::print(&format!("{all}\n"));
    }
    let title = format!("{} ({})", names(&arguments.files), input.format());
    out::print(&text(&title, &summary, arguments.top))?;
    for remark in input.remarks() {
        out::print(&format!("  {remark}\n"))?;
    }
    Ok(())
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        whole => format!("{:.2}%", part as f64 * 100.0 / whole as f64),
    }
}

/// Returns the summary as text; also for `generate`.
pub(super) fn text(title: &str, summary: &Summary, top: usize) -> String {
    let span = human_duration(Duration::from_nanos(summary.span_ns));
    let requests = human_count(summary.requests(), "request");
    let mut text = format!("{title}: {requests}, {span}\n\n");
    let mut table = Table::new(&["", ">requests", ">share", ">bytes", ">mean"]);
    for (name, totals) in [
        ("read", summary.reads),
        ("write", summary.writes),
        ("flush", summary.flushes),
        ("discard", summary.discards),
    ] {
        if totals.requests > 0 || matches!(name, "read" | "write") {
            table.row(vec![
                name.to_owned(),
                totals.requests.to_string(),
                percent(totals.requests, summary.requests()),
                human_bytes(totals.bytes),
                human_bytes(totals.mean_bytes() as u64),
            ]);
        }
    }
    text += &table.render(2);
    let data = summary.data().requests;
    let about = if summary.working_set_estimated {
        "about "
    } else {
        ""
    };
    let mut table = Table::new(&["", ">", ""]);
    for (name, value, more) in [
        (
            "working set",
            format!("{about}{}", human_bytes(summary.working_set_bytes())),
            format!(
                "{about}{} of {}",
                human_count(summary.working_set_pages, "page"),
                human_bytes(summary.page_bytes)
            ),
        ),
        (
            "largest request",
            human_bytes(u64::from(summary.max_bytes)),
            String::new(),
        ),
        (
            "sequential",
            percent(summary.sequential, data),
            "begin where the volume's last request ended".to_owned(),
        ),
        (
            "unaligned",
            percent(summary.unaligned, data),
            "do not begin and end at a multiple of 4 KiB".to_owned(),
        ),
        (
            "out of order",
            summary.out_of_order.to_string(),
            "are earlier than the request before".to_owned(),
        ),
    ] {
        table.row(vec![name.to_owned(), value, more]);
    }
    text += &table.render(2);
    text.push('\n');
    text += &sizes(summary).render(2);
    text.push('\n');
    text + &volumes(summary, top)
}

/// Returns the sizes at powers of two from the smallest that occurs.
fn sizes(summary: &Summary) -> Table {
    let mut table = Table::new(&[">size up to", ">requests", ">share", ">together"]);
    let (total, mut before) = (summary.sizes.total(), 0);
    for power in 9..=32 {
        let together = summary.sizes.at_most(power);
        if together > 0 && before < total {
            table.row(vec![
                human_bytes(1 << power),
                (together - before).to_string(),
                percent(together - before, total),
                percent(together, total),
            ]);
        }
        before = together;
    }
    table
}

fn bytes(volume: &VolumeSummary) -> u64 {
    volume.reads.and(volume.writes).bytes
}

fn volumes(summary: &Summary, top: usize) -> String {
    let mut all: Vec<_> = summary.volumes.iter().collect();
    // Stable: among equals the first to appear comes first.
    all.sort_by_key(|volume| std::cmp::Reverse(bytes(volume)));
    let mut table = Table::new(&[
        "volume",
        ">reads",
        ">writes",
        ">read share",
        ">bytes read",
        ">bytes written",
        ">working set",
        ">end",
    ]);
    for volume in all.iter().take(top) {
        let requests = volume.reads.and(volume.writes).requests;
        table.row(vec![
            volume.name.clone(),
            volume.reads.requests.to_string(),
            volume.writes.requests.to_string(),
            percent(volume.reads.requests, requests),
            human_bytes(volume.reads.bytes),
            human_bytes(volume.writes.bytes),
            human_bytes(volume.working_set_pages * summary.page_bytes),
            human_bytes(volume.end_bytes),
        ]);
    }
    let mut text = table.render(2);
    if all.len() > top {
        let more = human_count((all.len() - top) as u64, "more volume");
        text += &format!("  and {more} (--top, --json)\n");
    }
    text
}

fn totals(totals: Totals) -> Value {
    json!({ "requests": totals.requests, "bytes": totals.bytes })
}

fn as_json(summary: &Summary, input: &Input) -> Value {
    let volume = |volume: &VolumeSummary| {
        json!({
            "name": volume.name,
            "reads": totals(volume.reads),
            "writes": totals(volume.writes),
            "working_set_bytes": volume.working_set_pages * summary.page_bytes,
            "end_bytes": volume.end_bytes,
        })
    };
    let size = |power: u32| {
        let requests = summary.sizes.at_most(power);
        json!({ "size_bytes": 1_u64 << power, "requests": requests })
    };
    let counts = input.counts();
    json!({
        "format": input.format().name(),
        "requests": summary.requests(),
        "reads": totals(summary.reads),
        "writes": totals(summary.writes),
        "flushes": totals(summary.flushes),
        "discards": totals(summary.discards),
        "working_set_bytes": summary.working_set_bytes(),
        "working_set_estimated": summary.working_set_estimated,
        "page_bytes": summary.page_bytes,
        "sizes_at_most": (9..=32).map(size).collect::<Vec<_>>(),
        "max_bytes": summary.max_bytes,
        "span_ns": summary.span_ns,
        "begin_unix_ns": input.zero_unix_ns(),
        "out_of_order": summary.out_of_order,
        "unaligned": summary.unaligned,
        "sequential": summary.sequential,
        "skipped_bad": counts.bad,
        "ignored": counts.ignored,
        "cut_bytes": counts.cut_bytes,
        "lost": counts.lost,
        "before_zero": counts.before_zero,
        "volumes": summary.volumes.iter().map(volume).collect::<Vec<_>>(),
        "remarks": input.remarks(),
    })
}
