//! Opens files: selects decompressor, format and reader.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use forebay_block::{Context as _, Error, ErrorKind, Result};

use super::block_ids::BlockIds;
use super::input::{Input, Progress};
use super::line_formats::line_format;
use super::lines::LineReader;
use super::native::NativeReader;
use super::oracle_general::OracleGeneral;
use super::records::{Record, RecordReader};
use super::unit::{self, TimeUnit};
use super::vscsi::{self, VscsiV1, VscsiV2};
use super::{Source, detect};
use crate::{Format, Volumes};

/// Number of bytes to inspect of a file if its first records are not sufficient.
const HEAD_BYTES: usize = 1 << 20;

/// Options for opening a trace.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// The format; `None` to detect it from the first bytes.
    pub format: Option<Format>,
    /// Whether invalid records are skipped and counted instead of being an error.
    pub skip_bad: bool,
    /// Number of requests in the window that sorts by time; 0 for the order of the file. A request
    /// that is late by more than the window stays late.
    pub sort_window: usize,
    /// Unit of the files' times; `None` for that of their format.
    pub time_unit: Option<TimeUnit>,
}

/// An open file of a trace.
pub(super) struct Opened {
    pub(super) source: Box<dyn Source>,
    pub(super) format: Format,
    /// Time zero of the file.
    pub(super) epoch: Epoch,
}

/// Time zero of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Epoch {
    /// Unknown to the file.
    Unknown,
    /// From 1970.
    Unix,
    /// From 1601.
    Windows,
}

/// A file or another reader, with its name.
pub(super) type Named = (String, Box<dyn Read + Send>);

/// Opens files for [`open`]. Returns also the sum of their sizes, bytes.
pub(super) fn files<P: AsRef<Path>>(paths: &[P]) -> Result<(Vec<Named>, u64)> {
    let mut size_bytes = 0;
    let mut named: Vec<Named> = Vec::with_capacity(paths.len());
    for path in paths {
        let path = path.as_ref();
        let what = || format!("cannot read the trace {}", path.display());
        if path == Path::new("-") {
            let said = format!(
                "{}: it is no path\nhelp: for standard input write /dev/stdin",
                what()
            );
            return Err(Error::new(ErrorKind::InvalidInput, said));
        }
        let file = File::open(path).context(what)?;
        let metadata = file.metadata().context(what)?;
        if metadata.is_dir() {
            let said = format!("{}: it is a directory\nhelp: name its files", what());
            return Err(Error::new(ErrorKind::InvalidInput, said));
        }
        size_bytes += metadata.len();
        named.push((path.display().to_string(), Box::new(file)));
    }
    Ok((named, size_bytes))
}

/// Opens all of them in one format.
pub(super) fn open(
    named: Vec<Named>,
    options: &OpenOptions,
    progress: &Progress,
) -> Result<Vec<Opened>> {
    let names: Vec<String> = named.iter().map(|(name, _)| name.clone()).collect();
    let mut opened: Vec<Opened> = Vec::with_capacity(named.len());
    for ((name, reader), volume) in named.into_iter().zip(volume_names(&names)) {
        let input = Input::new(&name, reader, progress)?;
        let file = open_one(input, &volume, options)?;
        if let Some(first) = opened.first()
            && first.format != file.format
        {
            let said = format!(
                "{} is {} and {name} is {}: the files of one trace have one format; convert them \
                 first",
                names[0], first.format, file.format
            );
            return Err(Error::new(ErrorKind::InvalidInput, said));
        }
        opened.push(file);
    }
    Ok(opened)
}

/// Returns the volume names of files whose format has none: the file's name without directory and
/// extensions, unless two would be equal.
fn volume_names(files: &[String]) -> Vec<String> {
    let stem = |file: &String| {
        let name = file.rsplit('/').next().unwrap_or(file);
        let stem = name.split('.').find(|part| !part.is_empty());
        stem.unwrap_or(name).to_owned()
    };
    let stems: Vec<String> = files.iter().map(stem).collect();
    let different: HashSet<&String> = stems.iter().collect();
    if different.len() == stems.len() {
        stems
    } else {
        files.to_vec()
    }
}

fn open_one(input: Input, volume: &str, options: &OpenOptions) -> Result<Opened> {
    let name = input.name().to_owned();
    let opened = open_as_it_is(input, volume, options)?;
    let Some(unit) = options.time_unit else {
        return Ok(opened);
    };
    let source = unit::counted_in(unit, opened.format, &name, opened.source)?;
    Ok(Opened {
        source,
        // The epoch is known only for the format's own unit.
        epoch: Epoch::Unknown,
        ..opened
    })
}

fn open_as_it_is(mut input: Input, volume: &str, options: &OpenOptions) -> Result<Opened> {
    let format = match options.format {
        Some(format) => format,
        None => detect::detect(&mut input)?,
    };
    let mut volumes = Volumes::new();
    let skip_bad = options.skip_bad;
    let mut epoch = Epoch::Unknown;
    let head = match format {
        Format::Blkparse => input.at_least(HEAD_BYTES)?,
        _ => &[],
    };
    if let Some(lines) = line_format(format, head) {
        match format {
            Format::Msr => epoch = Epoch::Windows,
            Format::Alibaba | Format::Tencent | Format::Systor => epoch = Epoch::Unix,
            _ => {}
        }
        if matches!(
            format,
            Format::VscsiCsv | Format::VscsiCsvUs | Format::Lis | Format::Smartphone
        ) {
            own_volume(&mut volumes, volume)?;
        }
        let reader = LineReader::new(input, lines, volumes, skip_bad);
        let source = Box::new(match format {
            Format::Fio => reader.with_any_shape(),
            _ => reader,
        });
        return Ok(Opened {
            source,
            format,
            epoch,
        });
    }
    if format != Format::Native {
        own_volume(&mut volumes, volume)?;
    }
    let source = match format {
        Format::Native => {
            let reader = NativeReader::new(input, skip_bad)?;
            if reader.origin_unix_ns() > 0 {
                epoch = Epoch::Unix;
            }
            Box::new(reader)
        }
        Format::OracleGeneral => records(input, OracleGeneral, volumes, skip_bad),
        Format::BlockIds => records(input, BlockIds::default(), volumes, skip_bad),
        _ => match vscsi::version(input.at_least(HEAD_BYTES)?) {
            Some(1) => records(input, VscsiV1, volumes, skip_bad),
            Some(_) => records(input, VscsiV2, volumes, skip_bad),
            None => {
                let said = format!(
                    "{} is not a vscsi trace: its records have neither version 1 nor 2\n\
                     help: name another format (--format)",
                    input.name()
                );
                return Err(Error::new(ErrorKind::InvalidInput, said));
            }
        },
    };
    Ok(Opened {
        source,
        format,
        epoch,
    })
}

fn own_volume(volumes: &mut Volumes, name: &str) -> Result<()> {
    let said = || {
        let said = format!("{name} is longer than a volume's name may be (255 bytes): rename it");
        Error::new(ErrorKind::InvalidInput, said)
    };
    volumes.number(name).map(|_| ()).ok_or_else(said)
}

fn records<R: Record + 'static>(
    input: Input,
    record: R,
    volumes: Volumes,
    skip_bad: bool,
) -> Box<dyn Source> {
    Box::new(RecordReader::new(input, record, volumes, skip_bad))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_its_volume_a_name() {
        let names = |files: &[&str]| {
            volume_names(&files.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(names(&["a/w106.u32le.bin.zst", "b/P3.lis"]), ["w106", "P3"]);
        assert_eq!(names(&["a/x.lis", "b/x.lis"]), ["a/x.lis", "b/x.lis"]);
        assert_eq!(names(&[".hidden"]), ["hidden"]);
    }
}
