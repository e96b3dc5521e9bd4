//! The commands that ask the daemon to do something: flush, mode, detach, grow and scrub.

use std::io::{IsTerminal as _, Write as _};

use clap::Args;
use forebay_block::Result;

use crate::config::Mode;
use crate::control::client::{Client, Control};
use crate::control::protocol::{Reply, Request, line};
use forebay_terminal::out;
use forebay_terminal::size::Size;

/// Write dirty data back to the backing devices, and wait until it is there
#[derive(Debug, Args)]
pub(super) struct Flush {
    /// The volume; all volumes if it is left out
    volume: Option<String>,
    #[command(flatten)]
    answer: Answer,
}

/// Change how a volume uses the cache, while it is served
///
/// The configuration file is not changed: the next start uses what stands there.
#[derive(Debug, Args)]
pub(super) struct SetMode {
    /// The volume
    volume: String,
    /// wb (write-back), wt (write-through), wa (write-around), wi (write-invalidate), wo
    /// (write-only) or pt (pass-through)
    pub(super) mode: Mode,
    #[command(flatten)]
    answer: Answer,
}

/// Change when dirty data is written back, while volumes are served
///
/// The configuration file is not changed: the next start uses what stands there.
#[derive(Debug, Args)]
pub(super) struct SetCleaning {
    /// auto (as fast as clients allow), alru (by age), acp (always, as fast as it goes) or nop
    /// (only what room is needed for, and on `forebay flush`)
    policy: String,
    #[command(flatten)]
    answer: Answer,
}

/// Write a volume back and let the cache forget it
///
/// It is not served any more; the backing device alone has the data then, and may be used without
/// Forebay.
#[derive(Debug, Args)]
pub(super) struct Detach {
    #[command(flatten)]
    one: One,
    /// Give up what cannot be written back: THE DATA IS LOST. It is listed, range by range, and in
    /// the state directory
    #[arg(long)]
    abandon_dirty: bool,
}

/// Take a backing device that has grown into use, while the volume is served
///
/// A device that has become smaller is refused: data could lie beyond its new end.
#[derive(Debug, Args)]
pub(super) struct Grow {
    #[command(flatten)]
    one: One,
}

/// Read all that is cached and verify it against its checksums, while volumes are served
///
/// What is clean and corrupt is brought in anew from the backing device; what is dirty and corrupt
/// is named in the daemon's log, and reading it is an error until it is rewritten whole. Goes on in
/// the daemon when this command is interrupted; `forebay status` shows how far it is.
#[derive(Debug, Args)]
pub(super) struct Scrub {
    /// Read at most so much in a second [default: 64M]
    #[arg(long, value_name = "SIZE", conflicts_with = "stop")]
    rate: Option<Size>,
    /// Stop the one that is under way
    #[arg(long)]
    stop: bool,
    #[command(flatten)]
    answer: Answer,
}

/// What is done to one volume.
#[derive(Debug, Args)]
struct One {
    /// The volume
    volume: String,
    #[command(flatten)]
    answer: Answer,
}

/// How the answer is shown.
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
    /// Sends `request` and prints how far it is and how it ended: a sentence, or the reply as JSON.
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
