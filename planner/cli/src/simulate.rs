//! `forebay simulate`: runs a trace through caches without data.

use std::io::Write as _;
use std::path::PathBuf;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_policy::BlockSizes;
use forebay_trace::mrc::{Sampling, Shards, sizes};
use forebay_trace::sim::{CacheModel, Costs, Fill, Replace, Simulated, WriteBack};
use forebay_trace::stats::{Stats, StatsOptions};
use forebay_trace::write::Output;
use forebay_trace::{Format, Request};
use serde_json::json;

use super::input::{Input, ReadArguments, json_names, names, refuse_input};
use super::row::{Row, as_json, table};
use super::sizes::{Blocks, CacheSize};
use super::{interrupt, report};
use forebay_terminal::out;
use forebay_terminal::size::{human_bytes, human_count};

/// Memory limit for measuring the working set, bytes.
const WORKING_SET_MEMORY_BYTES: usize = 1 << 30;
/// Number of blocks in the sample of the miss-ratio curve, and of points of the curve.
const CURVE_SAMPLE_BLOCKS: usize = 32 << 10;
const CURVE_POINTS: usize = 24;

/// Which cache a trace would need, before it is bought: hit ratios, I/O volumes, memory, modelled
/// latency
///
/// Write-back caches are simulated, several in one pass. The latency is modelled, of a
/// general-purpose cloud volume (1 ms, 3,000 operations and 125 MiB a second) behind an NVMe cache,
/// never measured. The engine's own code decides on blocks of several sizes, on learning and on
/// eviction, as with `forebay format --block-size`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Files of the trace
    #[arg(required = true, value_name = "TRACE")]
    files: Vec<PathBuf>,
    /// Format, if it is not recognized; see `forebay trace stats --help`
    #[arg(long)]
    format: Option<Format>,
    #[command(flatten)]
    read: ReadArguments,
    /// Cache size, or its share of the working set as in 10%wss. 64G and 64GiB are powers of 1024,
    /// 64GB is a power of 1000. May be given several times
    #[arg(long, value_name = "SIZE", default_value = "10%wss")]
    cache: Vec<CacheSize>,
    /// Block sizes of the cache, as 32K or 32K..256K; may be given several times
    #[arg(long, value_name = "SIZES", default_value = "32K..256K")]
    blocks: Vec<Blocks>,
    /// Replacement rules: `forebay`, or `paper` for those of AdaCache (CLOUD'23)
    #[arg(long, value_enum, default_value = "forebay")]
    policy: Policy,
    /// Also simulate the fixed sizes 32K, 64K, 128K and 256K, and AdaCache's own rules
    #[arg(long)]
    compare: bool,
    /// Write a page with plots to this file, in one piece that needs no network. It has hit ratios,
    /// I/O volumes, memory, latency, block and request sizes, and the trace's miss-ratio curve
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Overwrite the file that --html names
    #[arg(long, requires = "html")]
    force: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Policy {
    Forebay,
    Paper,
}

/// Statistics of the trace for the page.
struct PageStatistics {
    stats: Stats,
    curve: Shards,
}

impl PageStatistics {
    fn new() -> Self {
        Self {
            stats: stats(),
            curve: Shards::new(Sampling::Blocks(CURVE_SAMPLE_BLOCKS), 1),
        }
    }

    fn add(&mut self, batch: &[Request]) {
        self.stats.add(batch);
        for request in batch {
            self.curve.request(request, report::CURVE_BLOCK_BYTES);
        }
    }

    /// Returns the page.
    fn page(&self, title: &str, rows: &[Row], input: &Input) -> String {
        let block_bytes = u64::from(report::CURVE_BLOCK_BYTES);
        let unique = self.curve.unique_blocks().max(1);
        let mut points = sizes((unique / 1000).max(1), unique, CURVE_POINTS);
        for row in rows {
            let blocks = row.capacity_bytes / block_bytes;
            points.extend([blocks, 2 * blocks]);
        }
        points.sort_unstable();
        points.dedup();
        report::render(&report::Content {
            title,
            summary: &self.stats.summary(input.volumes()),
            rows,
            curve: &self.curve.curve(&points),
            remarks: &input.remarks(),
        })
    }
}

/// Simulates caches on a trace and prints the result of each.
///
/// # Errors
/// A file that cannot be read or written, or that holds no trace.
pub fn run(arguments: &Arguments) -> Result<()> {
    // Checks the page's file before the simulation. An existing file stays until the page is
    // complete.
    let mut page = match &arguments.html {
        Some(path) => {
            let what = |error: Error| error.context(format!("--html {}", path.display()));
            refuse_input(path, &arguments.files).map_err(what)?;
            interrupt::watch();
            Some(Output::create(path, arguments.force).map_err(what)?)
        }
        None => None,
    };
    let working_set = match arguments
        .cache
        .iter()
        .any(|size| matches!(size, CacheSize::Share(_)))
    {
        true => Some(working_set(arguments)?),
        false => None,
    };
    let mut rows = Vec::new();
    for size in &arguments.cache {
        let capacity_bytes = match *size {
            CacheSize::Bytes(bytes) => bytes,
            CacheSize::Share(hundredths) => {
                let bytes = u128::from(working_set.unwrap_or(0)) * u128::from(hundredths);
                u64::try_from(bytes / 10_000).unwrap_or(u64::MAX)
            }
        };
        rows_of(arguments, capacity_bytes, &mut rows)?;
    }
    let mut input = Input::open(&arguments.files, arguments.format, &arguments.read)?;
    let mut looks = arguments.html.as_ref().map(|_| PageStatistics::new());
    let mut batch: Vec<Request> = Vec::new();
    while input.fill(&mut batch)? {
        if let Some(looks) = &mut looks {
            looks.add(&batch);
        }
        for row in &mut rows {
            for request in &batch {
                row.cache.request(request);
            }
        }
    }
    for row in &mut rows {
        row.cache.write_back_all();
    }
    input.check_not_empty()?;
    if let (Some(mut output), Some(looks)) = (page.take(), &looks) {
        let files = arguments.files.iter().filter_map(|path| path.file_name());
        let files: Vec<_> = files.map(|name| name.to_string_lossy()).collect();
        let page = looks.page(&files.join(", "), &rows, &input);
        output
            .write_all(page.as_bytes())
            .context(|| "cannot write the page that --html names")?;
        output.finish()?;
    }
    show(arguments, &input, working_set, &rows)
}

fn show(
    arguments: &Arguments,
    input: &Input,
    working_set: Option<u64>,
    rows: &[Row],
) -> Result<()> {
    if arguments.json {
        let all = json!({
            "files": json_names(&arguments.files),
            "format": input.format().to_string(),
            "working_set_bytes": working_set,
            "caches": rows.iter().map(as_json).collect::<Vec<_>>(),
            "skipped_bad": input.counts().bad,
            "remarks": remarks(input, rows),
        });
        return out::print(&format!("{all}\n"));
    }
    out::print(&text(&names(&arguments.files), working_set, rows))?;
    for remark in remarks(input, rows) {
        out::print(&format!("  {remark}\n"))?;
    }
    Ok(())
}

/// Returns remarks about the figures.
fn remarks(input: &Input, rows: &[Row]) -> Vec<String> {
    let mut remarks = input.remarks();
    let beyond = rows.iter().map(|row| row.cache.counts().beyond).max();
    if let Some(beyond) = beyond.filter(|beyond| *beyond > 0) {
        remarks.push(format!(
            "{} left out: a cache with blocks of this size has no volume so large that it has what \
             they ask for",
            human_count(beyond, "request")
        ));
    }
    let whole = rows.iter().filter(|row| {
        let counts = row.cache.counts();
        row.asked_for && counts.evicted_blocks == 0 && counts.evicted_groups == 0
    });
    if let Some(row) = whole.min_by_key(|row| row.capacity_bytes) {
        remarks.push(format!(
            "a cache of {} with blocks of {} holds all that is asked for, nothing had to go: a \
             larger one does nothing more",
            human_bytes(row.capacity_bytes),
            row.blocks
        ));
    }
    remarks
}

/// Returns the working set in pages of 4 KiB, bytes. This takes an additional pass over the trace.
fn working_set(arguments: &Arguments) -> Result<u64> {
    for path in &arguments.files {
        // Opening reports a missing file.
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            let what = format!(
                "{}: a share of the working set needs the trace twice, and only a regular file can \
                 be read twice\n\
                 help: give --cache a size such as 64G, or store the trace in a file",
                path.display()
            );
            return Err(Error::new(ErrorKind::InvalidInput, what));
        }
    }
    let mut input = Input::open(&arguments.files, arguments.format, &arguments.read)?;
    let mut stats = stats();
    let mut batch = Vec::new();
    while input.fill(&mut batch)? {
        stats.add(&batch);
    }
    input.check_not_empty()?;
    Ok(stats.summary(input.volumes()).working_set_bytes())
}

fn stats() -> Stats {
    Stats::new(StatsOptions {
        page_bytes: 4096,
        max_memory_bytes: WORKING_SET_MEMORY_BYTES,
    })
}

/// Most blocks of one simulated cache, which takes about 3 GiB of memory then.
const MAX_BLOCKS: u64 = 1 << 26;

fn rows_of(arguments: &Arguments, capacity_bytes: u64, rows: &mut Vec<Row>) -> Result<()> {
    let mut add = |name, blocks: BlockSizes, replace, fill, asked_for| {
        let groups = capacity_bytes / blocks.region_bytes();
        if capacity_bytes / blocks.unit_bytes() > MAX_BLOCKS {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "--cache: {} in blocks of {blocks} are more than {MAX_BLOCKS} blocks, which \
                     take too much memory\n\
                     help: choose a smaller --cache or larger --blocks",
                    human_bytes(capacity_bytes)
                ),
            ));
        }
        if groups == 0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "--cache: {} is less than one block of {}\n\
                     help: choose a --cache of {} or more, or smaller --blocks",
                    human_bytes(capacity_bytes),
                    human_bytes(blocks.region_bytes()),
                    human_bytes(blocks.region_bytes())
                ),
            ));
        }
        if groups > u64::from(u32::MAX) / u64::from(blocks.region_units()) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "a cache of {} cannot have blocks of {blocks}\n\
                     help: choose another --cache or --blocks",
                    human_bytes(capacity_bytes)
                ),
            ));
        }
        let cache = Simulated::new(CacheModel {
            sizes: blocks,
            capacity_bytes,
            replace,
            fill,
            write_back: match replace {
                Replace::Paper => WriteBack::Victim,
                Replace::Ours => WriteBack::Runs,
            },
            costs: Costs::CLOUD,
        });
        rows.push(Row {
            name,
            blocks,
            capacity_bytes,
            asked_for,
            cache,
        });
        Ok(())
    };
    if arguments.compare {
        for (name, fill) in [
            ("LRU, paper's fill", Fill::Whole),
            ("LRU, sub-block", Fill::SubBlock),
        ] {
            for kib in [32, 64, 128, 256] {
                let fixed = BlockSizes::new(&[kib << 10]).expect("one size");
                add(name, fixed, Replace::Paper, fill, false)?;
            }
        }
        let several = BlockSizes::new(&[32, 64, 128, 256].map(|kib| kib << 10));
        let several = several.expect("powers of two");
        add(
            "AdaCache, paper's fill",
            several,
            Replace::Paper,
            Fill::Whole,
            false,
        )?;
        add(
            "AdaCache, sub-block",
            several,
            Replace::Paper,
            Fill::SubBlock,
            false,
        )?;
    }
    for Blocks(blocks) in &arguments.blocks {
        match arguments.policy {
            Policy::Forebay => add("Forebay", *blocks, Replace::Ours, Fill::Learned, true)?,
            Policy::Paper => add("paper's fill", *blocks, Replace::Paper, Fill::Whole, true)?,
        }
    }
    Ok(())
}

fn text(title: &str, working_set: Option<u64>, rows: &[Row]) -> String {
    let mut text = format!("{title}: simulated, write-back");
    if let Some(bytes) = working_set {
        text += &format!("; working set {}", human_bytes(bytes));
    }
    text += "\n\n";
    text += &table(rows).render(2);
    text
}
