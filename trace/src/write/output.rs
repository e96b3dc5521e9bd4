//! A file that is there whole or not at all: it is written under another name and renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;
use forebay_block::{Context as _, Error, ErrorKind, Result};
use liblzma::write::XzEncoder;

type Plain = BufWriter<File>;

/// The file, compressed as the end of its name says.
enum Sink {
    Plain(Plain),
    Gzip(GzEncoder<Plain>),
    Xz(XzEncoder<Plain>),
    Zstd(zstd::stream::write::Encoder<'static, Plain>),
}

/// A file to write a trace into. What is not finished leaves nothing behind.
pub struct Output {
    sink: Option<Sink>,
    path: PathBuf,
    temporary: PathBuf,
    overwrite: bool,
}

impl Output {
    /// Begins a file at `path`, compressed if its name ends in `.gz`, `.xz` or `.zst`.
    ///
    /// # Errors
    /// If it exists and is not to be overwritten, or is no file, or cannot be made.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self> {
        refuse(path, overwrite)?;
        let what = || format!("cannot make {}", path.display());
        let Some(name) = path.file_name() else {
            let said = format!("{}: it ends in no file's name", what());
            return Err(Error::new(ErrorKind::InvalidInput, said));
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.part", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = BufWriter::with_capacity(1 << 20, File::create_new(&temporary).context(what)?);
        let mut output = Self {
            sink: None,
            path: path.to_owned(),
            temporary,
            overwrite,
        };
        let extension = path.extension().and_then(|extension| extension.to_str());
        output.sink = Some(match extension {
            Some("gz") => Sink::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Some("xz") => Sink::Xz(XzEncoder::new(file, 6)),
            Some("zst") => {
                let mut encoder = zstd::stream::write::Encoder::new(file, 3).context(what)?;
                encoder.include_checksum(true).context(what)?;
                Sink::Zstd(encoder)
            }
            _ => Sink::Plain(file),
        });
        Ok(output)
    }

    /// The folder of the file.
    #[must_use]
    pub fn folder(&self) -> PathBuf {
        let folder = self
            .path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        folder.unwrap_or(Path::new(".")).to_owned()
    }

    /// Completes the file, makes it durable, and gives it its name. Returns its size.
    ///
    /// # Errors
    /// If it cannot be written, or somebody else made a file of that name meanwhile.
    pub fn finish(mut self) -> Result<u64> {
        let path = self.path.clone();
        let what = || format!("cannot write {}", path.display());
        let sink = self.sink.take().expect("it is finished once");
        let plain = match sink {
            Sink::Plain(plain) => Ok(plain),
            Sink::Gzip(encoder) => encoder.finish(),
            Sink::Xz(encoder) => encoder.finish(),
            Sink::Zstd(encoder) => encoder.finish(),
        };
        let file = plain
            .context(what)?
            .into_inner()
            .map_err(io::IntoInnerError::into_error);
        let file = file.context(what)?;
        file.sync_all().context(what)?;
        let size_bytes = file.metadata().context(what)?.len();
        refuse(&path, self.overwrite)?;
        fs::rename(&self.temporary, &path).context(what)?;
        Ok(size_bytes)
    }
}

/// Refuses to write over what is there.
fn refuse(path: &Path, overwrite: bool) -> Result<()> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(());
    };
    let (kind, said) = if !metadata.is_file() {
        (ErrorKind::InvalidInput, "is no regular file: name one")
    } else if !overwrite {
        (
            ErrorKind::Busy,
            "exists: name another file, or overwrite it with --force",
        )
    } else {
        return Ok(());
    };
    Err(Error::new(kind, format!("{} {said}", path.display())))
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.sink.as_mut() {
            Some(Sink::Plain(file)) => file.write(bytes),
            Some(Sink::Gzip(encoder)) => encoder.write(bytes),
            Some(Sink::Xz(encoder)) => encoder.write(bytes),
            Some(Sink::Zstd(encoder)) => encoder.write(bytes),
            None => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.sink.as_mut() {
            Some(Sink::Plain(file)) => file.flush(),
            Some(Sink::Gzip(encoder)) => encoder.flush(),
            Some(Sink::Xz(encoder)) => encoder.flush(),
            Some(Sink::Zstd(encoder)) => encoder.flush(),
            None => Ok(()),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // After a rename nothing is there.
        let _ = fs::remove_file(&self.temporary);
    }
}
