//! Commands that the daemon executes: flush, mode, detach, grow, snapshot and scrub.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use forebay_block::Result;
use forebay_io::system::wall_clock;

use crate::config::Mode;
use crate::control::client::{Client, Control};
use crate::control::protocol::{ListedSnapshot, Reply, Request, line};
use forebay_terminal::out;
use forebay_terminal::size::{Size, human_bytes, human_duration};

/// Write dirty data back to the backing devices, and wait for the end
#[derive(Debug, Args)]
pub(super) struct Flush {
    /// Name of the volume [default: all volumes]
    volume: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Change how a volume uses the cache, while it is served
///
/// The configuration file is not changed: the next start uses its value.
#[derive(Debug, Args)]
pub(super) struct SetMode {
    /// Name of the volume
    volume: String,
    /// wb (write-back), wt (write-through), wa (write-around), wi (write-invalidate), wo
    /// (write-only) or pt (pass-through)
    pub(super) mode: Mode,
    #[command(flatten)]
    output: Output,
}

/// Change the cleaning policy, while volumes are served
///
/// The configuration file is not changed: the next start uses its value.
#[derive(Debug, Args)]
pub(super) struct SetCleaning {
    /// auto (as fast as clients allow), alru (by age), acp (always, at full speed) or nop (only to
    /// make room, and on `forebay flush`)
    policy: String,
    #[command(flatten)]
    output: Output,
}

/// Write a volume back and remove it from the cache
///
/// The volume is not served any more. The backing device alone has the data then, and may be used
/// without Forebay.
#[derive(Debug, Args)]
pub(super) struct Detach {
    #[command(flatten)]
    target: VolumeArguments,
    /// Give up all dirty data of the volume, also what could be written back: THE DATA IS LOST. It
    /// is listed, range by range, also in the state directory
    #[arg(long)]
    abandon_dirty: bool,
}

/// Apply the new size of a backing device that has grown, while the volume is served
///
/// A device that has shrunk is refused: data could lie beyond its new end.
#[derive(Debug, Args)]
pub(super) struct Grow {
    #[command(flatten)]
    target: VolumeArguments,
}

/// Make a snapshot of a volume in object storage, while it is served
///
/// The volume's dirty data is written back first. The snapshot has all data that was acknowledged
/// before the command. Pause writers for a snapshot of one moment: in mode wb, blocks are written
/// back in another order than clients wrote them. A device with `snapshot = "NAME"` serves it.
#[derive(Debug, Args)]
pub(super) struct Snapshot {
    /// Name of the volume
    volume: String,
    /// Name of the new snapshot: letters a to z, digits, - and _
    #[arg(required_unless_present_any = ["list", "delete"])]
    name: Option<String>,
    /// List the snapshots
    #[arg(long, conflicts_with_all = ["name", "delete"])]
    list: bool,
    /// Delete this snapshot
    #[arg(long, value_name = "NAME", conflicts_with = "name")]
    delete: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Read all cached data and verify it against its checksums, while volumes are served
///
/// Corrupt clean data is read from the backing device and replaced. Corrupt dirty data is named in
/// the daemon's log, and reading it is an error until it is overwritten completely. The scrub
/// continues in the daemon if this command is interrupted; `forebay status` shows its progress.
#[derive(Debug, Args)]
pub(super) struct Scrub {
    /// Bytes to read per second at most [default: 64M]
    #[arg(long, value_name = "SIZE", conflicts_with = "stop")]
    rate: Option<Size>,
    /// Stop the running scrub
    #[arg(long)]
    stop: bool,
    #[command(flatten)]
    output: Output,
}

/// Arguments of a command on one volume.
#[derive(Debug, Args)]
struct VolumeArguments {
    /// Name of the volume
    volume: String,
    #[command(flatten)]
    output: Output,
}

/// Format of the output.
#[derive(Debug, Args)]
struct Output {
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl Flush {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let volume = self.volume;
        self.output.call(control, &Request::Flush { volume })
    }
}

impl SetMode {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let Self { volume, mode, .. } = self;
        self.output.call(control, &Request::Mode { volume, mode })
    }
}

impl SetCleaning {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let Self { policy, output } = self;
        output.call(control, &Request::Cleaning { policy })
    }
}

impl Detach {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let VolumeArguments { volume, output } = self.target;
        let abandon_dirty = self.abandon_dirty;
        let request = Request::Detach {
            volume,
            abandon_dirty,
        };
        output.call(control, &request)
    }
}

impl Grow {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let VolumeArguments { volume, output } = self.target;
        output.call(control, &Request::Grow { volume })
    }
}

impl Snapshot {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let delete = self.delete.is_some();
        let request = Request::Snapshot {
            volume: self.volume,
            name: self.delete.or(self.name),
            delete,
        };
        self.output.call(control, &request)
    }
}

impl Scrub {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let bytes_per_second = self.rate.map(|rate| rate.0);
        let stop = self.stop;
        let request = Request::Scrub {
            bytes_per_second,
            stop,
        };
        self.output.call(control, &request)
    }
}

impl Output {
    /// Sends `request` and prints its progress and result: a sentence, or the reply as JSON. On a
    /// terminal, the progress is one line that is overwritten.
    fn call(&self, control: &Control, request: &Request) -> Result<()> {
        let mut client = Client::connect(control)?;
        let is_terminal = std::io::stderr().is_terminal();
        let mut has_progress = false;
        let reply = client.call(request, |progress| {
            if is_terminal {
                overwrite_line(progress);
                has_progress = true;
            } else {
                out::note(progress);
            }
        });
        if has_progress {
            overwrite_line("");
        }
        match reply? {
            Reply::Done(text) if !self.json => out::print(&format!("{text}\n")),
            Reply::Snapshots(listed) if !self.json => out::print(&snapshot_lines(&listed)),
            reply => out::print(&String::from_utf8_lossy(&line(&reply))),
        }
    }
}

/// Returns a line for each snapshot.
fn snapshot_lines(snapshots: &[ListedSnapshot]) -> String {
    if snapshots.is_empty() {
        return "The volume has no snapshots.\n".to_owned();
    }
    let now = wall_clock().as_secs();
    let lines = snapshots.iter().map(|snapshot| {
        let age = Duration::from_secs(now.saturating_sub(snapshot.created_s));
        let (name, size) = (&snapshot.name, human_bytes(snapshot.size_bytes));
        format!("{name}: {size}, made {} ago\n", human_duration(age))
    });
    lines.collect()
}

/// Replaces the last line of the terminal.
fn overwrite_line(text: &str) {
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "\r\x1b[2K{text}").and_then(|()| stderr.flush());
}
