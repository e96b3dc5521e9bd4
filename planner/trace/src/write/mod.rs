//! Writing traces: one module for each format, behind [`Writer`].

mod alibaba;
mod destination;
mod fio;
mod msr;
mod native;
mod oracle_general;
mod output;
mod part;
mod vscsi_csv;

use std::io::Write;
use std::path::PathBuf;

use forebay_block::{Context as _, Error, ErrorKind, Result};

pub use destination::{destination, with_remedy};
pub use native::{Appender, Recorded};
pub use output::Output;
pub use part::{Part, abandon};

use crate::{Format, Op, Request, Volumes};

/// Formats that can be written.
pub const FORMATS: [Format; 7] = [
    Format::Native,
    Format::Msr,
    Format::Alibaba,
    Format::OracleGeneral,
    Format::Fio,
    Format::VscsiCsv,
    Format::VscsiCsvUs,
];

/// Options of a writer.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Time of the trace's zero, nanoseconds since 1970; zero if unknown.
    pub zero_unix_ns: u64,
    /// Directory with space for a copy of the trace, for formats that need a second pass.
    pub scratch: PathBuf,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            zero_unix_ns: 0,
            scratch: std::env::temp_dir(),
        }
    }
}

/// Counts of written requests, and of those that the format could not hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Number of requests written.
    pub requests: u64,
    /// Number of flushes and discards left out, since the format has none.
    pub dropped: u64,
    /// Number of requests extended to whole sectors.
    pub widened: u64,
}

/// Encoder of a format.
trait Encode: Send {
    /// Appends the start of the file.
    fn begin(&mut self, bytes: &mut Vec<u8>) {
        let _ = bytes;
    }

    /// Appends requests.
    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        bytes: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()>;

    /// Appends that `count` requests are missing here; most formats cannot record that.
    fn lost(&mut self, count: u64, bytes: &mut Vec<u8>) {
        let _ = (count, bytes);
    }

    /// Writes the end of the file.
    fn end(&mut self, out: &mut dyn Write) -> Result<()> {
        let _ = out;
        Ok(())
    }
}

/// Writer of a trace.
pub struct Writer<W> {
    out: W,
    encode: Box<dyn Encode>,
    bytes: Vec<u8>,
    written: Written,
}

impl<W: Write> Writer<W> {
    /// Starts a trace in `format` on `out`.
    ///
    /// # Errors
    /// If the format cannot be written (see [`FORMATS`]), or `out` fails.
    pub fn new(out: W, format: Format, options: &WriteOptions) -> Result<Self> {
        let zero_unix_ns = options.zero_unix_ns;
        let mut encode: Box<dyn Encode> = match format {
            Format::Native => Box::new(native::Native::new(zero_unix_ns)),
            Format::Msr => Box::new(msr::Msr::new(zero_unix_ns)),
            Format::Alibaba => Box::new(alibaba::Alibaba::new(zero_unix_ns)),
            Format::OracleGeneral => {
                Box::new(oracle_general::OracleGeneral::new(&options.scratch)?)
            }
            Format::Fio => Box::new(fio::Fio::default()),
            Format::VscsiCsv => Box::new(vscsi_csv::VscsiCsv::seconds()),
            Format::VscsiCsvUs => Box::new(vscsi_csv::VscsiCsv::microseconds(zero_unix_ns)),
            _ => {
                let names = FORMATS.map(Format::name).join(", ");
                let said = format!(
                    "traces cannot be written as {format}\n\
                     help: write one of {names}"
                );
                return Err(Error::new(ErrorKind::Unsupported, said));
            }
        };
        let mut bytes = Vec::new();
        encode.begin(&mut bytes);
        let mut writer = Self {
            out,
            encode,
            bytes,
            written: Written::default(),
        };
        writer.put()?;
        Ok(writer)
    }

    /// Writes requests; `volumes` has the names of their volumes.
    ///
    /// # Errors
    /// If `out` fails, or the format cannot hold the requests.
    pub fn write(&mut self, requests: &[Request], volumes: &Volumes) -> Result<()> {
        self.encode
            .encode(requests, volumes, &mut self.bytes, &mut self.written)?;
        self.put()
    }

    /// Records that `count` served requests are missing here in the trace, if the format can.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn lost(&mut self, count: u64) -> Result<()> {
        self.encode.lost(count, &mut self.bytes);
        self.put()
    }

    /// Returns the output.
    pub const fn get_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Writes the end. Returns `out`, which has all data but may still buffer it.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn finish(mut self) -> Result<(W, Written)> {
        self.encode.end(&mut self.out)?;
        Ok((self.out, self.written))
    }

    fn put(&mut self) -> Result<()> {
        let put = self.out.write_all(&self.bytes);
        self.bytes.clear();
        put.context(|| "cannot write the trace")
    }
}

/// Appends a number in decimal, several times faster than `write!`.
fn put_number(bytes: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(number % 10).expect("a digit");
        number /= 10;
        if number == 0 {
            break;
        }
    }
    bytes.extend_from_slice(&digits[at..]);
}

/// Returns whether the request is a read or a write. Counts others as dropped.
fn is_data(request: &Request, written: &mut Written) -> bool {
    let data = matches!(request.op, Op::Read | Op::Write);
    written.dropped += u64::from(!data);
    data
}

/// Returns the sectors that a request touches, `(first, number)`. Counts the request as widened if
/// they exceed it.
fn sectors(request: &Request, written: &mut Written) -> (u64, u64) {
    const SECTOR_BYTES: u64 = 512;
    let (begin, end) = (request.offset_bytes, request.end_bytes());
    written.widened += u64::from((begin | end) % SECTOR_BYTES != 0);
    let first = begin / SECTOR_BYTES;
    (first, end.div_ceil(SECTOR_BYTES) - first)
}

/// The only volume, for formats without volumes.
#[derive(Default)]
struct OneVolume(Option<u32>);

impl OneVolume {
    fn check(&mut self, request: &Request, volumes: &Volumes, format: Format) -> Result<()> {
        let first = *self.0.get_or_insert(request.volume);
        if first == request.volume {
            return Ok(());
        }
        let said = format!(
            "{format} holds one volume, and the trace has several, such as {:?} and {:?}\n\
             help: choose one (--volume)",
            volumes.name(first),
            volumes.name(request.volume)
        );
        Err(Error::new(ErrorKind::InvalidInput, said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_digits() {
        for number in [0, 9, 10, 1234567890, u64::MAX] {
            let mut bytes = Vec::new();
            put_number(&mut bytes, number);
            assert_eq!(bytes, number.to_string().as_bytes());
        }
    }

    #[test]
    fn sectors_are_whole() {
        let request = |offset_bytes, len_bytes| Request {
            time_ns: 0,
            offset_bytes,
            len_bytes,
            volume: 0,
            op: Op::Read,
        };
        let mut written = Written::default();
        assert_eq!(sectors(&request(1024, 512), &mut written), (2, 1));
        assert_eq!(written.widened, 0);
        assert_eq!(sectors(&request(1023, 2), &mut written), (1, 2));
        assert_eq!(written.widened, 1);
    }

    #[test]
    fn formats_without_a_writer_are_refused() {
        let refused = Writer::new(Vec::new(), Format::Blkparse, &WriteOptions::default());
        let said = refused.err().expect("refused").report();
        assert!(
            said.contains("blkparse") && said.contains("alibaba"),
            "{said}"
        );
    }
}
