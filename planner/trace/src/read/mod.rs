//! Reading traces: one module for each format, behind [`Trace`], which hides columns and
//! compression.
//!
//! A trace need not fit into memory: each file has a window of 1 MiB. Requests are returned in
//! batches ([`Trace::fill`]), without an allocation for each.

mod alibaba;
mod blkparse;
mod block_ids;
mod detect;
mod field;
mod fio;
mod fiu;
mod input;
mod line_formats;
mod lines;
mod lis;
mod merge;
mod msr;
mod native;
mod open;
mod oracle_general;
mod records;
mod smartphone;
mod sort;
mod spc;
mod ssdsim;
mod systor;
mod tencent;
mod title;
mod trace;
mod unit;
mod vscsi;
mod vscsi_csv;

use std::fmt;

use forebay_block::{Error, ErrorKind, Result};

pub use input::Progress;
pub use open::OpenOptions;
pub use trace::{BATCH_REQUESTS, Trace};
pub use unit::TimeUnit;

use crate::{Op, Request, Volumes};

/// Counts of records other than requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Invalid records that were skipped; see [`OpenOptions::skip_bad`].
    pub bad: u64,
    /// Records without a request: titles, events other than arrivals, SCSI commands without data.
    pub ignored: u64,
    /// Bytes after the last whole frame of a truncated native file.
    pub cut_bytes: u64,
    /// Requests that were served but lost by the recorder.
    pub lost: u64,
    /// Requests earlier than the one before them.
    pub out_of_order: u64,
    /// Requests earlier than time zero, which is the earliest of the first requests of the trace.
    /// Their time is zero.
    pub before_zero: u64,
}

impl Counts {
    fn add(&mut self, other: Self) {
        self.bad += other.bad;
        self.ignored += other.ignored;
        self.cut_bytes += other.cut_bytes;
        self.lost += other.lost;
        self.out_of_order += other.out_of_order;
        self.before_zero += other.before_zero;
    }
}

/// Requests of one file, with the times and volume numbers of the file.
trait Source: Send {
    /// Appends up to `limit` requests. Returns false if there are no more.
    fn fill(&mut self, batch: &mut Vec<Request>, limit: usize) -> Result<bool>;

    /// Returns the file's volumes so far.
    fn volumes(&self) -> &Volumes;

    /// Returns the counts so far.
    fn counts(&self) -> Counts;

    /// Returns a remark about how the file is read, as a sentence; `None` if there is none.
    fn remark(&self) -> Option<&'static str> {
        None
    }
}

/// Decoder of one line.
trait LineFormat: Send {
    /// Decodes one line, without its end; `None` if it has no request.
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad>;

    /// As [`Source::remark`].
    fn remark(&self) -> Option<&'static str> {
        None
    }
}

/// Problem of a record. It is cheap, since there may be many if bad records are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bad {
    what: &'static str,
    why: &'static str,
}

impl Bad {
    const VOLUMES: Self = Self::new(
        "volume",
        "is one more than the 65,536 that a trace may have, or its name is longer than 255 bytes",
    );
    const TOO_LONG: Self = Self::new("line", "is longer than the lines of any trace");
    const CUT_OFF: Self = Self::new("last record", "is cut off");
    const TIME: Self = Self::new("time", "does not fit into 64 bits of nanoseconds");

    const fn new(what: &'static str, why: &'static str) -> Self {
        Self { what, why }
    }

    #[cold]
    fn error(self, file: &str, place: Place, record: &[u8]) -> Error {
        let Self { what, why } = self;
        let excerpt = &record[..record.len().min(EXCERPT_BYTES)];
        let excerpt = match place {
            Place::Line(_) => format!("\"{}\"", excerpt.escape_ascii()),
            Place::Record { .. } => excerpt.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        let said = format!(
            "{file}, {place}: the {what} {why}: {excerpt}\n\
             help: repair it, name another format (--format), or leave such records out \
             (--skip-bad)"
        );
        Error::new(ErrorKind::InvalidInput, said)
    }
}

/// Number of bytes shown of a bad record.
const EXCERPT_BYTES: usize = 80;

/// Place of a record in a file, counted from one.
#[derive(Clone, Copy, Debug)]
enum Place {
    Line(u64),
    Record { number: u64, offset: u64 },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Record { number, offset } => write!(f, "record {number} at byte {offset}"),
        }
    }
}

/// Parses R or W, in either case.
#[inline]
fn letter(field: &[u8]) -> Result<Op, Bad> {
    match field {
        b"R" | b"r" => Ok(Op::Read),
        b"W" | b"w" => Ok(Op::Write),
        _ => Err(Bad::new("operation", "is neither R nor W")),
    }
}

/// Returns the volume with this name.
#[inline]
fn named(field: &[u8], volumes: &mut Volumes) -> Result<u32, Bad> {
    volumes
        .number_of(field, || String::from_utf8_lossy(field).into_owned())
        .ok_or(Bad::VOLUMES)
}
