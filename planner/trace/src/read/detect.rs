//! Detection of a file's format from its first bytes.
//!
//! A text format is possible if its reader parses most of the first lines, so that detection and
//! reader agree. If several formats remain, the file's name may decide.

use forebay_block::{Error, ErrorKind, Result};

use super::input::Input;
use super::line_formats::line_format;
use super::title::{BYTE_ORDER_MARK, agrees, is_title};
use super::{EXCERPT_BYTES, oracle_general, vscsi};
use crate::{Format, Volumes, native};

/// Number of bytes to inspect.
const HEAD_BYTES: usize = 64 << 10;

/// Number of lines to try.
const SAMPLE_LINES: usize = 200;

/// Returns the format of `input`, without consuming its bytes.
pub(super) fn detect(input: &mut Input) -> Result<Format> {
    let name = input.name().to_owned();
    let head = input.at_least(HEAD_BYTES)?;
    let head = &head[..head.len().min(HEAD_BYTES)];
    if head.is_empty() {
        let said = format!(
            "{name} is empty: it is no trace\nhelp: name a file with a trace, or record one"
        );
        return Err(Error::new(ErrorKind::InvalidInput, said));
    }
    let mut possible = if is_text(head) {
        text(head)
    } else {
        binary(head, &name)
    };
    if possible.len() > 1 {
        let hinted: Vec<_> = possible
            .iter()
            .copied()
            .filter(|format| hints(&name, *format))
            .collect();
        if hinted.len() == 1 {
            possible = hinted;
        }
    }
    match possible[..] {
        [format] => Ok(format),
        [] => {
            let beginning = match is_text(head) {
                true => {
                    let first = lines(head).first().copied().unwrap_or_default();
                    let shown = &first[..first.len().min(EXCERPT_BYTES)];
                    format!("; it begins with \"{}\"", shown.escape_ascii())
                }
                false => String::new(),
            };
            let said = format!(
                "cannot tell the format of {name}: no reader understands its beginning{beginning}\n\
                 help: name one with --format: {}",
                Format::names()
            );
            Err(Error::new(ErrorKind::InvalidInput, said))
        }
        _ => {
            let names: Vec<_> = possible.iter().map(|format| format.name()).collect();
            let said = format!(
                "cannot tell the format of {name}: it may be {}; say which with --format",
                names.join(" or ")
            );
            Err(Error::new(ErrorKind::InvalidInput, said))
        }
    }
}

fn is_text(head: &[u8]) -> bool {
    let sample = &head[..head.len().min(4096)];
    let strange = |byte: &&u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    !sample.contains(&0) && sample.iter().filter(strange).count() * 100 <= sample.len()
}

fn hints(name: &str, format: Format) -> bool {
    let name = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let microseconds = name.contains("_us");
    match format {
        Format::VscsiCsv => false,
        Format::VscsiCsvUs => microseconds,
        format => name.contains(format.name()),
    }
}

fn binary(head: &[u8], name: &str) -> Vec<Format> {
    if head.starts_with(&native::MAGIC) {
        return vec![Format::Native];
    }
    if vscsi::version(head).is_some() {
        return vec![Format::Vscsi];
    }
    if oracle_general::plausible(head) {
        return vec![Format::OracleGeneral];
    }
    // Any bytes may be numbers of blocks.
    if name.contains("u32le") {
        return vec![Format::BlockIds];
    }
    vec![]
}

/// Returns the first lines that are not empty, without line ends.
fn lines(head: &[u8]) -> Vec<&[u8]> {
    let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    head.split(|byte| *byte == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line))
        .filter(|line| !line.is_empty())
        .take(SAMPLE_LINES)
        .collect()
}

fn text(head: &[u8]) -> Vec<Format> {
    // The last line of a long file is truncated.
    let whole = match memchr::memrchr(b'\n', head) {
        Some(end) => &head[..end],
        None => head,
    };
    let lines = lines(whole);
    let title = lines.first().copied().filter(|first| is_title(first));
    let records = match title {
        Some(_) => &lines[1..],
        None => &lines[..],
    };
    let mut samples: Vec<Sample> = Format::ALL
        .into_iter()
        .filter(|format| title.is_none_or(|title| agrees(*format, title)))
        .filter_map(|format| Sample::take(format, whole, records))
        .collect();
    let best = samples.iter().map(|sample| sample.bad).min();
    samples.retain(|sample| Some(sample.bad) == best);
    let fits = |format: Format| samples.iter().find(|sample| sample.format == format);
    let mut possible: Vec<Format> = samples.iter().map(|sample| sample.format).collect();
    if fits(Format::Ssdsim).is_some() {
        // Whole numbers only: similar formats have milliseconds with a fraction.
        possible.retain(|format| !matches!(format, Format::Replayer | Format::Flashsim));
    } else if fits(Format::Flashsim).is_some_and(|sample| sample.volumes.names() != ["0"]) {
        // flashsim has only one device.
        possible.retain(|format| *format != Format::Flashsim);
    }
    // Both count from the start of the machine. A machine with an uptime of 31 years does not count
    // seconds. One with an uptime below 17 minutes is not traced.
    match fits(Format::VscsiCsvUs).map(|sample| sample.first_ns / 1_000) {
        Some(..1_000_000_000) => possible.retain(|format| *format != Format::VscsiCsvUs),
        Some(10_000_000_000..) => possible.retain(|format| *format != Format::VscsiCsv),
        _ => {}
    }
    possible
}

/// Result of a format's reader for the first lines.
struct Sample {
    format: Format,
    bad: usize,
    volumes: Volumes,
    first_ns: u64,
}

impl Sample {
    /// Returns `None` if the reader fails for most of the lines.
    fn take(format: Format, head: &[u8], lines: &[&[u8]]) -> Option<Self> {
        let mut reader = line_format(format, head)?;
        let mut volumes = Volumes::new();
        let (mut first_ns, mut bad) = (None, 0);
        for line in lines {
            match reader.line(line, &mut volumes) {
                Ok(Some(request)) => {
                    first_ns.get_or_insert(request.time_ns);
                }
                Ok(None) => {}
                Err(_) => bad += 1,
            }
        }
        let first_ns = first_ns.filter(|_| bad * 2 <= lines.len())?;
        Some(Self {
            format,
            bad,
            volumes,
            first_ns,
        })
    }
}
