//! `forebay mrc`: the miss ratio of every cache size at once.

use std::path::PathBuf;

use forebay_block::{Error, ErrorKind, Result};
use forebay_trace::Format;
use forebay_trace::mrc::{Curve, Exact, Sampling, Shards, sizes};
use serde_json::json;

use super::input::{Input, ReadArguments, json_names, names};
use forebay_terminal::number::whole;
use forebay_terminal::out;
use forebay_terminal::size::{Size, human_bytes};
use forebay_terminal::table::Table;

/// Miss ratios of a trace for every size of an LRU cache
///
/// The curve is from a sample by default (SHARDS, FAST'15), with the standard error of each point.
/// The memory does not grow with the trace. --exact stores the whole working set. If all blocks fit
/// in the sample, the result is exact.
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
    /// Size of a cache block, a power of two from 512
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    block_size: Size,
    /// Store every block, in about 50 bytes each, in addition to the sample; then the error of the
    /// sample is measured
    #[arg(long)]
    exact: bool,
    /// Number of blocks in the sample, from 1024 to 16777216, in about 120 bytes each
    #[arg(long, value_name = "BLOCKS", default_value = "32768",
        value_parser = whole::<u32>(1024..=1 << 24))]
    sample: u32,
    /// Number of points of the curve to print, from 2 to 10000
    #[arg(long, value_name = "NUMBER", default_value = "20",
        value_parser = whole::<u32>(2..=10_000))]
    points: u32,
    /// Print the curve as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the miss ratio curve of a trace.
///
/// # Errors
/// A file that cannot be read or written, or that holds no trace.
pub fn run(arguments: &Arguments) -> Result<()> {
    let block_bytes = u32::try_from(arguments.block_size.0).unwrap_or(0);
    if !block_bytes.is_power_of_two() || block_bytes < 512 {
        let said = "--block-size is not a power of two from 512 to 2G\nhelp: write --block-size 4K";
        return Err(Error::new(ErrorKind::InvalidInput, said));
    }
    let mut input = Input::open(&arguments.files, arguments.format, &arguments.read)?;
    let mut sampled = Shards::new(Sampling::Blocks(arguments.sample as usize), 1);
    // Dropped once it has more blocks than the sample may have, unless --exact is given.
    let mut exact = Some(Exact::new());
    let fits = |exact: &Exact| exact.unique_blocks() <= u64::from(arguments.sample);
    let mut batch = Vec::new();
    while input.fill(&mut batch)? {
        for request in &batch {
            sampled.request(request, block_bytes);
            if let Some(exact) = &mut exact {
                exact.request(request, block_bytes);
            }
            if !arguments.exact && exact.as_ref().is_some_and(|exact| !fits(exact)) {
                exact = None;
            }
        }
    }
    input.check_not_empty()?;
    let unique = match &exact {
        Some(exact) => exact.unique_blocks(),
        None => sampled.unique_blocks(),
    };
    let sizes = sizes(
        (unique / 1000).max(1),
        unique.max(1),
        arguments.points as usize,
    );
    let sample = match &exact {
        Some(exact) if fits(exact) => exact.curve(&sizes),
        _ => sampled.curve(&sizes),
    };
    let exact = exact.map(|exact| exact.curve(&sizes));
    if arguments.json {
        let curve = |curve: &Curve| {
            let points = curve.points.iter().map(|point| {
                json!({
                    "blocks": point.blocks,
                    "miss_ratio": point.miss_ratio,
                    "read_miss_ratio": point.read_miss_ratio,
                    "write_miss_ratio": point.write_miss_ratio,
                    "standard_error": point.standard_error,
                })
            });
            json!(points.collect::<Vec<_>>())
        };
        let all = json!({
            "files": json_names(&arguments.files),
            "block_bytes": block_bytes,
            "unique_blocks": unique,
            "sampled": curve(&sample),
            "exact": exact.as_ref().map(curve),
            "mean_absolute_error": exact.as_ref().map(|exact| sample.mean_absolute_error(exact)),
            "skipped_bad": input.counts().bad,
            "remarks": input.remarks(),
        });
        return out::print(&format!("{all}\n"));
    }
    let mut table = Table::new(&[
        ">cache",
        ">misses",
        ">reads",
        ">writes",
        ">error, estimated",
        ">exact",
    ]);
    let percent = |ratio: f64| format!("{:.2}%", ratio * 100.0);
    for (index, point) in sample.points.iter().enumerate() {
        table.row(vec![
            human_bytes(point.blocks * u64::from(block_bytes)),
            percent(point.miss_ratio),
            percent(point.read_miss_ratio),
            percent(point.write_miss_ratio),
            percent(point.standard_error),
            exact.as_ref().map_or_else(
                || "-".into(),
                |exact| percent(exact.points[index].miss_ratio),
            ),
        ]);
    }
    let mut text = format!(
        "{}: {} of blocks of {}\n\n{}",
        names(&arguments.files),
        human_bytes(unique * u64::from(block_bytes)),
        human_bytes(u64::from(block_bytes)),
        table.render(2)
    );
    if let Some(exact) = &exact {
        let error = sample.mean_absolute_error(exact);
        text += &format!("  mean error of the sample: {}\n", percent(error));
    }
    out::print(&text)?;
    for remark in input.remarks() {
        out::print(&format!("  {remark}\n"))?;
    }
    Ok(())
}
