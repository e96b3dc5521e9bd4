//! `forebay pagecache`: the distributed page cache. Its directory and nodes are processes of their
//! own, beside the daemon.

mod mount;
mod report;
mod signals;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use forebay_block::{Error, ErrorKind, Result};
use forebay_cluster::pool::Pool;
use forebay_cluster::server::{self, Server};
pub use forebay_cluster::status;
use forebay_cluster::{
    Coherence, Consistency, DeviceNode, Emulated, InFlight, Node, NodeId, Options, PAGE_BYTES,
    Placement, Replicas, WriteBack,
};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_mount::SharedMount;
use forebay_terminal::duration::Durations;
use forebay_terminal::log_filter;
use forebay_terminal::number::whole;
use forebay_terminal::out;
use forebay_terminal::size::{BadValue, Interval, Size, human_bytes};
use sd_notify::NotifyState;

use signals::Signals;

const LEASES: Durations = Durations::new(
    Duration::from_millis(100)..=Duration::from_secs(24 * 3600),
    ("100ms", "24h"),
    "write 100ms to 24h",
);

const COPIES: Durations = Durations::new(
    Duration::ZERO..=Duration::from_secs(1),
    ("0s", "1s"),
    "write 0s to 1s, such as 400ns",
);

/// Interval at which a node checks that it is still in the cluster.
const LOOK: Duration = Duration::from_millis(200);

/// Least memory of a directory's pool, and of a node that gives any, bytes.
const LEAST_BYTES: u64 = 1 << 20;

/// Least value of --dirty, bytes.
const LEAST_DIRTY_BYTES: u64 = 64 << 10;

/// Share files among processes with one copy of each page in memory
///
/// The directory knows where each page is; nodes give memory and use all of it. Programs use a node
/// as a library (see docs/operate/page-cache.md).
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Directory(Directory),
    Node(NodeArguments),
    Status(StatusArguments),
    Metrics(MetricsArguments),
    Flush(FlushArguments),
}

/// Run the directory of a pool, in the foreground
///
/// It may end and be restarted at any time: the nodes continue with their pages, and the directory
/// learns the locations of pages from them.
#[derive(Debug, Args)]
struct Directory {
    /// Directory tree to cache, or a block device or an image of one
    #[arg(long, value_name = "PATH")]
    source: PathBuf,
    /// Pool: a directory on tmpfs, created if it does not exist
    #[arg(long, value_name = "DIR")]
    pool: PathBuf,
    /// Memory for pages of all nodes together, allocated at the start
    #[arg(long, value_name = "SIZE")]
    capacity: Size,
    /// Longest silence of a node before its process is ended
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "5s")]
    lease: Interval,
    /// Longest time that a node may use a page that is being revoked, before its process is ended
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "60s")]
    acknowledge: Interval,
    /// Directory of the source, as a relative path, whose files programs may map shared on the
    /// mounts. These files are in the kernel's cache and not in the pool. May be given several
    /// times, identically for all nodes
    #[arg(long, value_name = "DIR")]
    map: Vec<PathBuf>,
    /// Treatment of pages in the memory of a node that dies. Default: pool for a directory tree,
    /// and node for a block device, which supports no other
    #[arg(long, value_enum)]
    placement: Option<Place>,
    /// With --placement pool: longest time that the source may refuse a page of a dead node, before
    /// the page counts as lost
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "60s")]
    rescue: Interval,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Place {
    /// They are lost with it, and the next fsync of their writers reports that
    Node,
    /// They stay in the pool, which outlives the node, and are written to the store
    Pool,
}

/// Give memory to the cluster, in the foreground
///
/// SIGTERM and SIGINT end it cleanly: its pages are written to the store first.
#[derive(Debug, Args)]
struct NodeArguments {
    /// Pool of the directory
    #[arg(long, value_name = "DIR")]
    pool: PathBuf,
    /// Number of the node, 0 to 31, unique in the pool
    #[arg(long, value_name = "NUMBER", value_parser = whole::<u8>(0..=31))]
    id: u8,
    /// Memory that the node gives to the cluster
    #[arg(long, value_name = "SIZE")]
    memory: Size,
    /// Time at which other nodes see writes
    #[arg(long, value_enum, default_value = "strong")]
    consistency: Consistent,
    /// Copies of pages in other nodes' memory, for reads on this node
    #[arg(long, value_enum, default_value = "none")]
    replicas: Replicated,
    /// Age at which written pages are put into the source, although no program has flushed them
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "30s")]
    expiry: Interval,
    /// Amount of written pages above which all are put into the source, whatever their age. Above
    /// twice as much, writers wait for the source. Default: a fifth of the memory
    #[arg(long, value_name = "SIZE")]
    dirty: Option<Size>,
    /// Time of the write-back of a file that a program closes
    #[arg(long, value_enum, default_value = "expiry")]
    write_back: WrittenBack,
    /// Number of concurrent reads and writes of the source by threads, 1 to 256
    #[arg(long, value_name = "NUMBER", value_parser = whole::<u16>(1..=256),
        default_value = "16")]
    source_depth: u16,
    /// Longest time that an operation waits for the source; then it fails (ETIMEDOUT), and written
    /// data stays in memory
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "60s")]
    source_timeout: Interval,
    /// Method that keeps the processors' caches of different hosts coherent; the same for all nodes
    /// of a pool
    #[arg(long, value_enum, default_value = "hardware")]
    coherence: Coherent,
    /// Emulation: additional latency of each copy from or to another node's memory
    #[arg(long, value_name = "TIME", value_parser = copy_latency)]
    emulate_latency: Option<Interval>,
    /// Emulation: bandwidth of such copies, bytes per second
    #[arg(long, value_name = "SIZE")]
    emulate_bandwidth: Option<Size>,
    /// Directory to mount the files on, for ordinary programs; created if it does not exist
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,
    /// Let all users use the mount, within the permissions of each file. Default: only root
    #[arg(long, requires = "mount")]
    allow_other: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Coherent {
    /// Hardware: one host, or a fabric with back-invalidate
    Hardware,
    /// Each copy drops cache lines before it loads them, and writes them back after it has stored
    /// them
    Software,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Consistent {
    /// Every later read on any node sees a completed write
    Strong,
    /// The same for pages in memory; whole pages written where there was none become visible when
    /// the file is closed, synced or unlocked
    Relaxed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Replicated {
    /// None: each page has one copy in the cluster
    None,
    /// Of often read pages, in memory of this node that nothing else needs
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WrittenBack {
    /// At the age of its writes, or when it is flushed
    Expiry,
    /// At the close of a descriptor that wrote, which waits for it and reports its errors
    Close,
}

/// Show pages, owners, hits, messages and dirty data
#[derive(Debug, Args)]
struct StatusArguments {
    /// Pool of the directory
    #[arg(long, value_name = "DIR")]
    pool: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
}

/// Print the status as metrics, in Prometheus' text format
#[derive(Debug, Args)]
struct MetricsArguments {
    /// Pool of the directory
    #[arg(long, value_name = "DIR")]
    pool: PathBuf,
}

/// Make the writes of all nodes durable in the source
///
/// It fails if a write was refused or lost, and names the file. The next fsync of the program that
/// wrote it reports that too.
#[derive(Debug, Args)]
struct FlushArguments {
    /// Pool of the directory
    #[arg(long, value_name = "DIR")]
    pool: PathBuf,
    /// Longest wait for all nodes
    #[arg(long, value_name = "TIME", value_parser = lease, default_value = "60s")]
    timeout: Interval,
}

/// Runs one command of the page cache. A directory or a node runs until a signal ends it.
///
/// # Errors
/// A pool, source or mount that cannot be used, or a directory that does not answer.
pub fn run(arguments: &Arguments) -> Result<()> {
    match &arguments.command {
        Command::Directory(arguments) => run_directory(arguments),
        Command::Node(arguments) => run_node(arguments),
        Command::Status(arguments) => report::run(&arguments.pool, arguments.json),
        Command::Metrics(arguments) => report::run_metrics(&arguments.pool),
        Command::Flush(arguments) => report::run_flush(&arguments.pool, arguments.timeout.0),
    }
}

fn pages(name: &str, size: Size) -> Result<u32> {
    let pages = u32::try_from(size.0 / PAGE_BYTES as u64).ok();
    pages.filter(|_| size.0 >= LEAST_BYTES).ok_or_else(|| {
        let context = format!(
            "{name} {} is out of range\nhelp: give at least {} and less than 16 TiB",
            human_bytes(size.0),
            human_bytes(LEAST_BYTES)
        );
        Error::new(ErrorKind::InvalidInput, context)
    })
}

fn dirty_pages(size: Size) -> Result<usize> {
    let pages = usize::try_from(size.0 / PAGE_BYTES as u64).ok();
    pages
        .filter(|_| size.0 >= LEAST_DIRTY_BYTES)
        .ok_or_else(|| {
            let context = format!(
                "--dirty {} is out of range\nhelp: give at least {}",
                human_bytes(size.0),
                human_bytes(LEAST_DIRTY_BYTES)
            );
            Error::new(ErrorKind::InvalidInput, context)
        })
}

fn run_directory(arguments: &Directory) -> Result<()> {
    let pages = pages("--capacity", arguments.capacity)?;
    log_to_stderr()?;
    let mut options = server::Options::new(&arguments.source, &arguments.pool, pages);
    options.lease = arguments.lease.0;
    options.acknowledge = arguments.acknowledge.0;
    options.rescue = arguments.rescue.0;
    options.mapped.clone_from(&arguments.map);
    options.placement = arguments.placement.map(|place| match place {
        Place::Node => Placement::Node,
        Place::Pool => Placement::Pool,
    });
    let server = Server::open(options)?;
    let pool = arguments.pool.display();
    out::print(&match server.awaited() {
        0 => format!("directory of {pool}: ready\n"),
        count => format!("directory of {pool}: waits for {count} nodes that were there before\n"),
    })?;
    notify(NotifyState::Ready);
    server.run()
}

/// Notifies systemd, if it started this process.
fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot notify systemd: {error}");
    }
}

fn run_node(arguments: &NodeArguments) -> Result<()> {
    let pages = pages("--memory", arguments.memory)?;
    let id = NodeId::new(arguments.id).expect("the option accepts 0 to 31");
    log_to_stderr()?;
    let mut signals = Signals::new()?;
    let mut options = Options::new(&arguments.pool, id, pages);
    options.consistency = match arguments.consistency {
        Consistent::Strong => Consistency::Strong,
        Consistent::Relaxed => Consistency::Relaxed,
    };
    options.replicas = match arguments.replicas {
        Replicated::None => Replicas::None,
        Replicated::Idle => Replicas::Idle,
    };
    options.expiry = arguments.expiry.0;
    if let Some(dirty) = arguments.dirty {
        options.dirty_pages = dirty_pages(dirty)?;
    }
    options.write_back = match arguments.write_back {
        WrittenBack::Expiry => WriteBack::Expiry,
        WrittenBack::Close => WriteBack::Close,
    };
    options.io_threads = arguments.source_depth.into();
    options.limit = arguments.source_timeout.0;
    options.coherence = match arguments.coherence {
        Coherent::Hardware => Coherence::Hardware,
        Coherent::Software => Coherence::Software,
    };
    options.emulated = emulated(arguments);
    if let Some(Emulated {
        latency,
        bytes_per_s,
    }) = options.emulated
    {
        let bound = match bytes_per_s {
            0 => "any bandwidth".to_owned(),
            bytes_per_s => format!("{}/s", human_bytes(bytes_per_s)),
        };
        out::print(&format!(
            "{id}: emulated: copies from and to other nodes' memory take {latency:?} longer, and \
             {bound}\n"
        ))?;
    }
    // A user is present to read the error.
    options.patience = Duration::from_secs(10);
    let source = pool_source(&options)?;
    if !source.is_dir() {
        return run_device_node(arguments, options, &source, signals);
    }
    if let Some(place) = &arguments.mount {
        // Before other nodes use the memory of this node.
        forebay_mount::check_mount(&source, place)?;
    }
    let node = Node::join(options)?;
    let memory = human_bytes(u64::from(node.frames()) * PAGE_BYTES as u64);
    out::print(&format!("{id}: joined with {memory}\n"))?;
    let place = arguments.mount.as_deref();
    let mount =
        (place.map(|place| mount::mount(&node, id, place, arguments.allow_other))).transpose()?;
    let unmounted = || mount::unmounted(id, place?, mount.as_ref()?);
    let served = serve_until_signal(&mut signals, || node.broken().or_else(unmounted));
    if served.is_err() && node.broken().is_some() {
        return served;
    }
    // First: the mount holds the node's files.
    mount.map_or(Ok(true), SharedMount::unmount)?;
    // Threads of a mount that programs still have open may be within an operation.
    match node.leave() {
        true => out::print(&format!("{id}: left\n")).and(served),
        false => Err(Error::new(
            ErrorKind::TimedOut,
            format!(
                "{id} has not left in time, and ends with pages in its memory: the log has the \
                 reason\n\
                 help: start the directory, which writes them back with --placement pool; else \
                 they are lost"
            ),
        )),
    }
}

/// Waits for a signal that ends a node, or for the error that breaks it.
fn serve_until_signal(signals: &mut Signals, broken: impl Fn() -> Option<Error>) -> Result<()> {
    notify(NotifyState::Ready);
    while !signals.wait(LOOK) {
        if let Some(error) = broken() {
            return Err(error);
        }
    }
    notify(NotifyState::Stopping);
    Ok(())
}

/// Returns the source of the pool's directory, once there is one.
fn pool_source(options: &Options) -> Result<PathBuf> {
    let (pool, begin) = (Pool::new(&options.pool)?, Instant::now());
    let mut said = false;
    loop {
        match pool.source() {
            Err(error)
                if error.kind() == ErrorKind::NotFound && begin.elapsed() < options.patience =>
            {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(
                        "page cache, {}: waiting {:?} for a directory: {}",
                        options.id,
                        options.patience,
                        error.report()
                    );
                }
                std::thread::sleep(LOOK);
            }
            found => return found,
        }
    }
}

/// Runs a node of a pool whose source is a block device. It gives memory, for programs that use the
/// library.
fn run_device_node(
    arguments: &NodeArguments,
    options: Options,
    source: &Path,
    mut signals: Signals,
) -> Result<()> {
    if let Some(place) = &arguments.mount {
        let context = format!(
            "--mount {}: {} is a block device and has no files to mount\n\
             help: leave --mount out, and use it by the library",
            place.display(),
            source.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    if arguments.write_back == WrittenBack::Close {
        let context = format!(
            "--write-back close: {} is a block device and has no files to close\n\
             help: leave --write-back expiry",
            source.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    let id = options.id;
    let node = DeviceNode::join(options, InFlight::Ends, async |source| {
        FileDevice::open(source, FileDeviceOptions::default())
    })?;
    let memory = human_bytes(u64::from(node.frames()) * PAGE_BYTES as u64);
    out::print(&format!("{id}: joined with {memory}\n"))?;
    if let Some(why) = node.read_only() {
        out::print(&format!("{id}: read only: {why}\n"))?;
    }
    serve_until_signal(&mut signals, || node.broken())?;
    if node.leave() {
        return out::print(&format!("{id}: left\n"));
    }
    let what = format!(
        "{id} has not left in time, and ends with pages in its memory: unwritten ones ARE LOST\n\
         help: the log has the reason; see that the device takes writes, and write the data again"
    );
    Err(Error::new(ErrorKind::TimedOut, what))
}

/// Returns the emulation options, if any are given.
fn emulated(arguments: &NodeArguments) -> Option<Emulated> {
    let (latency, bandwidth) = (arguments.emulate_latency, arguments.emulate_bandwidth);
    (latency.is_some() || bandwidth.is_some()).then(|| Emulated {
        latency: latency.map_or(Duration::ZERO, |latency| latency.0),
        bytes_per_s: bandwidth.map_or(0, |bandwidth| bandwidth.0),
    })
}

/// Logs to standard error, with the filter in FOREBAY_LOG or warnings.
///
/// # Errors
/// As [`log_filter::from_environment`].
fn log_to_stderr() -> Result<()> {
    let filter = log_filter::from_environment("warn")?;
    let log = tracing_subscriber::fmt().with_writer(out::LogOutputs::new());
    let log = log.with_ansi(std::io::stderr().is_terminal());
    log.with_env_filter(filter).init();
    Ok(())
}

/// Parses the time limits of a node.
fn lease(text: &str) -> std::result::Result<Interval, BadValue> {
    LEASES.parse(text)
}

/// Parses the emulated latency of a copy.
fn copy_latency(text: &str) -> std::result::Result<Interval, BadValue> {
    COPIES.parse(text)
}
