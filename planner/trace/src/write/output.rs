//! A file that is there whole or not at all: it is written under another name and renamed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use forebay_block::{Context as _, Result};
use liblzma::write::XzEncoder;

use super::destination::{destination, folder, with_remedy};
use super::part::Part;

type Plain = BufWriter<File>;

/// The file, compressed as the end of its name says.
enum Sink {
    Plain(Plain),
    Gzip(GzEncoder<Plain>),
    Xz(XzEncoder<Plain>),
    Zstd(zstd::stream::write::Encoder<'static, Plain>),
}

/// A file to write a trace or a report into. What is not finished leaves nothing behind: neither
/// after an error, nor after [`super::abandon`]; what a process that was killed left is removed by
/// the next that writes the same file.
pub struct Output {
    sink: Option<Sink>,
    path: PathBuf,
    part: Part,
    overwrite: bool,
}

impl Output {
    /// Begins a file at `path`, compressed if its name ends in `.gz`, `.xz` or `.zst`. A link is
    /// followed.
    ///
    /// # Errors
    /// If it exists and is not to be overwritten, or is no file, or cannot be made.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self> {
        let path = destination(path, overwrite)?;
        let (part, file) = Part::create(&path)?;
        let file = BufWriter::with_capacity(1 << 20, file);
        let extension = path.extension().and_then(|extension| extension.to_str());
        let sink = match extension {
            Some("gz") => Sink::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Some("xz") => Sink::Xz(XzEncoder::new(file, 6)),
            Some("zst") => {
                let what = || format!("cannot write {}", path.display());
                let mut encoder = zstd::stream::write::Encoder::new(file, 3).context(what)?;
                encoder.include_checksum(true).context(what)?;
                Sink::Zstd(encoder)
            }
            _ => Sink::Plain(file),
        };
        Ok(Self {
            sink: Some(sink),
            path,
            part,
            overwrite,
        })
    }

    /// The folder of the file.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        folder(&self.path).to_owned()
    }

    /// Completes the file, makes it durable, and gives it its name. Returns its size.
    ///
    /// # Errors
    /// If it cannot be written, or somebody else made a file of that name meanwhile. What had the
    /// name before is there then as it was.
    pub fn finish(mut self) -> Result<u64> {
        let path = self.path.clone();
        let what = || format!("cannot write {}", path.display());
        let size_bytes = self
            .complete()
            .map_err(|error| with_remedy(&path, error))
            .context(what)?;
        destination(&path, self.overwrite)?;
        self.part.rename(&path).context(what)?;
        Ok(size_bytes)
    }

    fn complete(&mut self) -> io::Result<u64> {
        let plain = match self.sink.take().expect("it is finished once") {
            Sink::Plain(plain) => plain,
            Sink::Gzip(encoder) => encoder.finish()?,
            Sink::Xz(encoder) => encoder.finish()?,
            Sink::Zstd(encoder) => encoder.finish()?,
        };
        let file = plain.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(file.metadata()?.len())
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.sink.as_mut() {
            Some(Sink::Plain(file)) => file.write(bytes),
            Some(Sink::Gzip(encoder)) => encoder.write(bytes),
            Some(Sink::Xz(encoder)) => encoder.write(bytes),
            Some(Sink::Zstd(encoder)) => encoder.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        };
        written.map_err(|error| with_remedy(&self.path, error))
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = match self.sink.as_mut() {
            Some(Sink::Plain(file)) => file.flush(),
            Some(Sink::Gzip(encoder)) => encoder.flush(),
            Some(Sink::Xz(encoder)) => encoder.flush(),
            Some(Sink::Zstd(encoder)) => encoder.flush(),
            None => Ok(()),
        };
        flushed.map_err(|error| with_remedy(&self.path, error))
    }
}
