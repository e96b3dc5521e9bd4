//! An output file that is complete or absent: it is written under another name and renamed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use forebay_block::{Context as _, Result};
use liblzma::write::XzEncoder;

use super::destination::{destination, folder, with_remedy};
use super::part::Part;

type Plain = BufWriter<File>;

/// The file, compressed according to its extension.
enum Sink {
    Plain(Plain),
    Gzip(GzEncoder<Plain>),
    Xz(XzEncoder<Plain>),
    Zstd(zstd::stream::write::Encoder<'static, Plain>),
}

/// An output file for a trace or a report. An unfinished file is removed, after an error and by
/// [`super::abandon`]. The file of a killed process is removed by the next process that writes the
/// same path.
pub struct Output {
    sink: Option<Sink>,
    path: PathBuf,
    part: Part,
    overwrite: bool,
}

impl Output {
    /// Starts a file at `path`, compressed if its name ends in `.gz`, `.xz` or `.zst`. Follows a
    /// link.
    ///
    /// # Errors
    /// If the file exists and must not be overwritten, is not a regular file, or cannot be created.
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

    /// Returns the directory of the file.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        folder(&self.path).to_owned()
    }

    /// Completes the file, makes it durable, and renames it. Returns its size, bytes.
    ///
    /// # Errors
    /// If it cannot be written, or another program created a file of this name meanwhile. An
    /// existing file of this name is unchanged then.
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
