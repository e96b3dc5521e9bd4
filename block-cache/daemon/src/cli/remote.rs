//! Commands that the daemon executes: flush, mode, detach, grow and scrub.

use std::io::{IsTerminal as _, Write as _};

use clap::Args;
use forebay_block::Result;

use crate::config::Mode;
use crate::control::client::{Client, Control};
use crate::control::protocol::{Reply, Request, line};
use forebay_terminal::out;
use forebay_terminal::size::Size;

/// Write dirty data back to the backing devices, and wait for the end
#[derive(Debug, Args)]
pub(super) struct Flush {
    /// Name of the volume [default: all volumes]
    volume: Option<String>,
    #[command(flatten)]
    answer: Answer,
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
    answer: Answer,
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
    answer: Answer,
}

/// Write a volume back and remove it from the cache
///
/// The volume is not served any more. The backing device alone has the data then, and may be used
/// without Forebay.
#[derive(Debug, Args)]
pub(super) struct Detach {
    #[command(flatten)]
    one: One,
    /// Give up data that cannot be written back: THE DATA IS LOST. It is listed, range by range,
    /// also in the state directory
    #[arg(long)]
    abandon_dirty: bool,
}

/// Apply the new size of a backing device that has grown, while the volume is served
///
/// A device that has shrunk is refused: data could lie beyond its new end.
#[derive(Debug, Args)]
pub(super) struct Grow {
    #[command(flatten)]
    one: One,
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
    answer: Answer,
}

/// A command on one volume.
#[derive(Debug, Args)]
struct One {
    /// Name of the volume
    volume: String,
    #[command(flatten)]
    answer: Answer,
}

/// Format of the output.
#[derive(Debug, Args)]
struct Answer {
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

impl Flush {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let volume = self.volume;
        self.answer.show(control, &Request::Flush { volume })
    }
}

impl SetMode {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let Self { volume, mode, .. } = self;
        self.answer.show(control, &Request::Mode { volume, mode })
    }
}

impl SetCleaning {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let Self { policy, answer } = self;
        answer.show(control, &Request::Cleaning { policy })
    }
}

impl Detach {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let One { volume, answer } = self.one;
        let abandon_dirty = self.abandon_dirty;
        let request = Request::Detach {
            volume,
            abandon_dirty,
        };
        answer.show(control, &request)
    }
}

impl Grow {
    pub(super) fn run(self, control: &Control) -> Result<()> {
        let One { volume, answer } = self.one;
        answer.show(control, &Request::Grow { volume })
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
        self.answer.show(control, &request)
    }
}

impl Answer {
    /// Sends `request` and prints its progress and result: a sentence, or the reply as JSON.
    fn show(&self, control: &Control, request: &Request) -> Result<()> {
        let mut client = Client::connect(control)?;
        let terminal = std::io::stderr().is_terminal();
        let clear = |text: &str| {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[2K{text}").and_then(|()| stderr.flush());
        };
        let mut shown = false;
        let reply = client.call(request, |text| {
            if terminal {
                clear(text);
                shown = true;
            } else {
                out::note(text);
            }
        });
        if shown {
            clear("");
        }
        match reply? {
            Reply::Done(text) if !self.json => out::print(&format!("{text}\n")),
            reply => out::print(&String::from_utf8_lossy(&line(&reply))),
        }
    }
}
