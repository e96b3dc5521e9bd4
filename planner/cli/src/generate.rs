//! `forebay trace generate`: generates a trace.

use std::path::PathBuf;
use std::str::FromStr;

use forebay_block::Result;
use forebay_trace::Format;
use forebay_trace::generate::{Arrivals, Generator, Preset, SizeCdf, VolumeLoad};
use forebay_trace::stats::{Stats, StatsOptions};
use forebay_trace::write::{Output, WriteOptions, Writer};

use super::convert::report;
use super::input::bar;
use super::interrupt;
use super::stats::text;
use forebay_terminal::number::{decimal, whole};
use forebay_terminal::out;
use forebay_terminal::size::Size;

/// A share in percent.
fn percent(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>();
    (percent.ok())
        .filter(|percent| (0.0..=100.0).contains(percent))
        .ok_or_else(|| "it is not a number from 0 to 100".to_owned())
}

/// Make a trace from a description
///
/// The same seed makes the same trace. The AdaCache paper (CLOUD '23) describes three sets of
/// traces. A preset has their published numbers of reads, writes and bytes, in proportion to
/// --requests, and their features of sizes. Locality and arrivals are ours. A preset is not a
/// recording, and the names of its volumes say so.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// File to write; compressed if its name ends in .gz, .xz or .zst
    pub(super) out: PathBuf,
    /// Published figures: alibaba (5 volumes), msr (7) or systor (6)
    #[arg(long, value_name = "NAME", value_parser = parse_preset)]
    pub(super) preset: Option<Preset>,
    /// Number of requests of each volume [default: 10 million]
    #[arg(long, value_name = "NUMBER", value_parser = whole::<u64>(1..=u64::MAX))]
    pub(super) requests: Option<u64>,
    /// Seed of the random numbers
    #[arg(long, default_value = "1", value_parser = whole::<u64>(0..=u64::MAX))]
    pub(super) seed: u64,
    /// Format to write: native, msr, alibaba, oracle-general, fio, vscsi-csv or vscsi-csv-us
    #[arg(long, value_name = "FORMAT", default_value = "native")]
    pub(super) to: Format,
    /// Overwrite an existing file
    #[arg(long)]
    pub(super) force: bool,
    #[command(flatten)]
    pub(super) load: LoadArguments,
}

/// A custom load.
#[derive(Debug, clap::Args)]
pub(super) struct LoadArguments {
    /// Number of volumes, all of the same kind
    #[arg(
        long,
        value_name = "NUMBER",
        default_value = "1",
        value_parser = whole::<u32>(1..=u64::from(u32::MAX)),
        conflicts_with = "preset"
    )]
    pub(super) volumes: u32,
    /// Percentage of reads
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "70",
        value_parser = percent,
        conflicts_with = "preset"
    )]
    pub(super) reads: f64,
    /// Sizes with their weights, such as 4K:60,64K:40
    #[arg(
        long,
        value_name = "SIZES",
        default_value = "4K:1",
        conflicts_with = "preset"
    )]
    pub(super) sizes: Weights,
    /// Sizes of writes, if they differ
    #[arg(long, value_name = "SIZES", conflicts_with = "preset")]
    pub(super) write_sizes: Option<Weights>,
    /// Size of the range that a volume's requests use
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "10G",
        conflicts_with = "preset"
    )]
    pub(super) working_set: Size,
    /// Skew of popularity: the exponent of Zipf's law, 0 for none
    #[arg(
        long,
        value_name = "EXPONENT",
        default_value = "0.9",
        value_parser = decimal(0.0..=100.0),
        conflicts_with = "preset"
    )]
    pub(super) zipf: f64,
    /// Percentage of requests that start at the end of the last one of their kind
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "0",
        value_parser = percent,
        conflicts_with = "preset"
    )]
    pub(super) sequential: f64,
    /// Requests of a volume per second, on average, with independent arrivals
    #[arg(
        long,
        value_name = "NUMBER",
        default_value = "1000",
        value_parser = decimal(1e-3..=1e9),
        conflicts_with = "preset"
    )]
    pub(super) rate: f64,
    /// Let requests arrive at equal intervals
    #[arg(long, conflicts_with = "preset")]
    pub(super) steady: bool,
}

fn parse_preset(name: &str) -> Result<Preset, String> {
    let found = Preset::ALL.into_iter().find(|preset| preset.name() == name);
    found.ok_or_else(|| "write alibaba, msr or systor".to_owned())
}

/// Sizes with weights, as on the command line.
#[derive(Clone, Debug)]
pub(super) struct Weights(pub(super) SizeCdf);

impl FromStr for Weights {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let weight = |part: &str| {
            let (size, weight) = part.split_once(':')?;
            let bytes: Size = size.trim().parse().ok()?;
            Some((u32::try_from(bytes.0).ok()?, weight.trim().parse().ok()?))
        };
        let weights: Option<Vec<_>> = text.split(',').map(weight).collect();
        let weights = weights.ok_or("write sizes with their weights, such as 4K:60,64K:40")?;
        SizeCdf::new(&weights)
            .map(Self)
            .map_err(|error| error.report())
    }
}

fn loads(arguments: &Arguments) -> Vec<VolumeLoad> {
    let requests = arguments.requests.unwrap_or(Preset::REQUESTS);
    if let Some(preset) = arguments.preset {
        return preset.loads(requests);
    }
    let load = &arguments.load;
    let write_sizes = load.write_sizes.as_ref().unwrap_or(&load.sizes);
    let rate_per_s = load.rate;
    let volume = |number| VolumeLoad {
        name: format!("generated-{number}"),
        requests,
        read_share: load.reads / 100.0,
        read_sizes: load.sizes.0.clone(),
        write_sizes: write_sizes.0.clone(),
        working_set_bytes: load.working_set.0,
        zipf_exponent: load.zipf,
        sequential_share: load.sequential / 100.0,
        arrivals: match load.steady {
            true => Arrivals::Fixed { rate_per_s },
            false => Arrivals::Poisson { rate_per_s },
        },
    };
    (0..load.volumes).map(volume).collect()
}

/// Generates a trace and writes it.
///
/// # Errors
/// A file that cannot be read or written, or that holds no trace.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut generator = Generator::new(loads(arguments), arguments.seed)?;
    let total = generator.left();
    interrupt::watch();
    let output = Output::create(&arguments.out, arguments.force)?;
    let options = WriteOptions {
        zero_unix_ns: 0,
        scratch: output.folder(),
    };
    let mut writer = Writer::new(output, arguments.to, &options)?;
    let mut stats = Stats::new(StatsOptions::default());
    let bar = bar(total, "{human_pos} of {human_len} requests");
    let mut batch = Vec::new();
    while generator.fill(&mut batch) {
        writer.write(&batch, generator.volumes())?;
        stats.add(&batch);
        bar.inc(batch.len() as u64);
    }
    let (output, written) = writer.finish()?;
    let size_bytes = output.finish()?;
    bar.finish_and_clear();
    let kind = arguments.preset.map_or("a load of your own", Preset::name);
    let from = format!("generated, not recorded ({kind}, seed {})", arguments.seed);
    let summary = stats.summary(generator.volumes());
    out::print(&report(
        &from,
        &arguments.out,
        arguments.to,
        written,
        size_bytes,
    ))?;
    out::print(&text("generated", &summary, summary.volumes.len().min(20)))
}
