//! Decompressed bytes of one file, through a window of bounded size.

use std::io::{self, BufReader, Cursor, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use liblzma::stream::{CONCATENATED, Stream};

/// Size of a window, bytes. Lines and records are much shorter.
const WINDOW_BYTES: usize = 1 << 20;

/// Largest memory for an xz file, bytes: `xz -9` needs 65 MiB.
const XZ_MEMORY_BYTES: u64 = 256 << 20;

/// Largest zstd window, as a power of two: `zstd --long` uses 128 MiB.
const ZSTD_WINDOW_LOG: u32 = 27;

/// Progress of reading a trace.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    read_bytes: Arc<AtomicU64>,
}

impl Progress {
    /// Returns the number of bytes read, compressed as in the files.
    #[must_use]
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }
}

/// Reader that counts its bytes.
struct Counted<R> {
    inner: R,
    progress: Progress,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        let bytes = &self.progress.read_bytes;
        bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

type Bytes = Box<dyn Read + Send>;

/// Returns `reader` with the decompressor that its first bytes indicate.
fn decompressed(mut reader: Bytes) -> io::Result<Bytes> {
    let mut magic = Vec::with_capacity(6);
    reader.by_ref().take(6).read_to_end(&mut magic)?;
    let is = |prefix: &[u8]| magic.starts_with(prefix);
    let gzip = is(&[0x1f, 0x8b, 8]);
    let xz = is(&[0xfd, b'7', b'z', b'X', b'Z', 0]);
    let bzip2 = is(b"BZh")
        && magic
            .get(3)
            .is_some_and(|level| (b'1'..=b'9').contains(level));
    // A skippable frame may be first, as from pzstd.
    let skippable = magic.len() >= 4 && magic[0] & 0xf0 == 0x50 && is_skippable(&magic);
    let zstd = is(&[0x28, 0xb5, 0x2f, 0xfd]) || skippable;
    let whole = BufReader::with_capacity(1 << 16, Cursor::new(magic).chain(reader));
    Ok(if gzip {
        Box::new(flate2::bufread::MultiGzDecoder::new(whole))
    } else if xz {
        let stream =
            Stream::new_stream_decoder(XZ_MEMORY_BYTES, CONCATENATED).map_err(io::Error::other)?;
        Box::new(liblzma::bufread::XzDecoder::new_stream(whole, stream))
    } else if bzip2 {
        Box::new(bzip2::bufread::MultiBzDecoder::new(whole))
    } else if zstd {
        let mut decoder = zstd::stream::read::Decoder::with_buffer(whole)?;
        decoder.window_log_max(ZSTD_WINDOW_LOG)?;
        Box::new(decoder)
    } else {
        Box::new(whole)
    })
}

fn is_skippable(magic: &[u8]) -> bool {
    magic[1..4] == [0x2a, 0x4d, 0x18]
}

/// Bytes of one file.
pub(super) struct Input {
    name: String,
    reader: Bytes,
    window: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
    /// Offset of the window in the decompressed file.
    offset: u64,
}

impl Input {
    pub(super) fn new(name: &str, reader: Bytes, progress: &Progress) -> Result<Self> {
        let counted = Counted {
            inner: reader,
            progress: progress.clone(),
        };
        let reader =
            decompressed(Box::new(counted)).context(|| format!("cannot read the trace {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            reader,
            window: vec![0; WINDOW_BYTES],
            start: 0,
            end: 0,
            ended: false,
            offset: 0,
        })
    }

    /// Returns the name of the file.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the data that was read and not consumed.
    #[inline]
    pub(super) fn data(&self) -> &[u8] {
        &self.window[self.start..self.end]
    }

    /// Returns the offset of [`Input::data`] in the decompressed file.
    #[inline]
    pub(super) const fn offset(&self) -> u64 {
        self.offset
    }

    /// Consumes the first `bytes` of the data.
    #[inline]
    pub(super) fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.end - self.start, "only what is there");
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Reads more data. Returns false at the end of the file, or if the window is full.
    pub(super) fn more(&mut self) -> Result<bool> {
        if self.start > 0 {
            self.window.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        while !self.ended && self.end < self.window.len() {
            match self.reader.read(&mut self.window[self.end..]) {
                Ok(0) => self.ended = true,
                Ok(read) => {
                    self.end += read;
                    return Ok(true);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.ended = true;
                    return Err(self.failed(error));
                }
            }
        }
        Ok(false)
    }

    /// Reads until there are `bytes`, or the file ends.
    pub(super) fn at_least(&mut self, bytes: usize) -> Result<&[u8]> {
        while self.end - self.start < bytes {
            if !self.more()? {
                break;
            }
        }
        Ok(self.data())
    }

    fn failed(&self, error: io::Error) -> Error {
        let read_bytes = self.offset + (self.end - self.start) as u64;
        let said = format!(
            "cannot read the trace {}: after {read_bytes} bytes of content; if the file was cut \
             off or damaged, fetch it again",
            self.name
        );
        // Errors of the decompressors have no number of the operating system.
        match error.raw_os_error() {
            Some(_) => Error::from(error).context(said),
            None => Error::with_source(ErrorKind::Corrupt, said, error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn content() -> Vec<u8> {
        (0..200_000_u32).flat_map(u32::to_le_bytes).collect()
    }

    fn compressed(kind: &str, content: &[u8]) -> Vec<u8> {
        match kind {
            "gzip" => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Default::default());
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
            "xz" => {
                let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
            "bzip2" => {
                let level = bzip2::Compression::fast();
                let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), level);
                encoder.write_all(content).unwrap();
                encoder.finish().unwrap()
            }
            _ => zstd::encode_all(content, 1).unwrap(),
        }
    }

    fn read(bytes: Vec<u8>) -> Result<Vec<u8>> {
        let mut input = Input::new("test", Box::new(Cursor::new(bytes)), &Progress::default())?;
        let mut content = Vec::new();
        while input.more()? || !input.data().is_empty() {
            content.extend_from_slice(input.data());
            let whole = input.data().len();
            input.consume(whole);
        }
        Ok(content)
    }

    #[test]
    fn files_of_several_members_are_read_whole() {
        let content = content();
        for kind in ["gzip", "xz", "bzip2", "zstd"] {
            let (first, second) = content.split_at(300_000);
            let mut file = compressed(kind, first);
            file.extend(compressed(kind, second));
            assert!(file.len() < content.len());
            assert!(read(file).unwrap() == content, "{kind}");
        }
    }

    #[test]
    fn a_file_that_was_cut_off_is_an_error() {
        for kind in ["gzip", "xz", "bzip2", "zstd"] {
            let mut file = compressed(kind, &content());
            file.truncate(file.len() / 2);
            let error = read(file).expect_err(kind);
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{kind}");
            let error = error.report();
            assert!(error.contains("the trace test: after "), "{kind}: {error}");
        }
    }

    #[test]
    fn uncompressed_input_passes_unchanged() {
        for bytes in [vec![], vec![1], b"BZ".to_vec(), content()] {
            assert_eq!(read(bytes.clone()).unwrap(), bytes);
        }
    }

    #[test]
    fn consumed_bytes_advance_the_offset() {
        let mut input =
            Input::new("x", Box::new(Cursor::new(content())), &Progress::default()).unwrap();
        assert!(input.at_least(10_000).unwrap().len() >= 10_000);
        input.consume(8);
        assert_eq!(input.offset(), 8);
        assert_eq!(input.data()[..4], 2_u32.to_le_bytes());
    }
}
