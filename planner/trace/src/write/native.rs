//! The native format, written at once, or by a recorder that continues an existing file.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, ErrorKind as IoErrorKind, Read, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use forebay_block::{Context as _, Error, ErrorKind, Result};

use super::{Encode, Written};
use crate::native::{
    FRAME_BYTES, HEADER_BYTES, Kind, MAX_PAYLOAD_BYTES, RECORD_BYTES, decode_frame, decode_header,
    encode_frame, encode_header, names, put_name, put_request,
};
use crate::{Request, Volumes};

pub(super) struct Native {
    zero_unix_ns: u64,
    frames: Frames,
}

impl Native {
    pub(super) fn new(zero_unix_ns: u64) -> Self {
        Self {
            zero_unix_ns,
            frames: Frames::default(),
        }
    }
}

impl Encode for Native {
    fn begin(&mut self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&encode_header(self.zero_unix_ns));
    }

    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        bytes: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()> {
        self.frames.put(requests, volumes, bytes);
        written.requests += requests.len() as u64;
        Ok(())
    }

    fn lost(&mut self, count: u64, bytes: &mut Vec<u8>) {
        self.frames.lost(count, bytes);
    }
}

/// Encoder of frames.
#[derive(Default)]
struct Frames {
    named: usize,
    payload: Vec<u8>,
}

impl Frames {
    fn put(&mut self, requests: &[Request], volumes: &Volumes, bytes: &mut Vec<u8>) {
        // A name takes up to 256 bytes.
        for names in volumes.names()[self.named..].chunks(MAX_PAYLOAD_BYTES / 256) {
            for name in names {
                put_name(&mut self.payload, name);
            }
            self.named += names.len();
            self.frame(Kind::Volumes, names.len(), bytes);
        }
        for requests in requests.chunks(MAX_PAYLOAD_BYTES / RECORD_BYTES) {
            for request in requests {
                put_request(&mut self.payload, request);
            }
            self.frame(Kind::Requests, requests.len(), bytes);
        }
    }

    fn lost(&mut self, mut count: u64, bytes: &mut Vec<u8>) {
        while count > 0 {
            let some = u32::try_from(count).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&encode_frame(Kind::Lost, some as usize, &[]));
            count -= u64::from(some);
        }
    }

    fn frame(&mut self, kind: Kind, count: usize, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&encode_frame(kind, count, &self.payload));
        bytes.append(&mut self.payload);
    }
}

/// Contents of a native file that a recorder continues.
#[derive(Clone, Debug, Default)]
pub struct Recorded {
    /// Time of the trace's zero, nanoseconds since 1970; zero if unknown.
    pub zero_unix_ns: u64,
    /// Named volumes.
    pub volumes: Volumes,
    /// Number of requests in whole frames.
    pub requests: u64,
    /// Number of requests lost by the recorder.
    pub lost: u64,
    /// Bytes after the last whole frame, which were removed.
    pub cut_bytes: u64,
}

/// Appends to a native file. Each call of [`Appender::write`] is a frame that readers can use at
/// once. If the recorder dies within a call, that frame is lost as a whole.
pub struct Appender {
    file: File,
    frames: Frames,
    bytes: Vec<u8>,
}

impl Appender {
    /// Creates a file.
    ///
    /// # Errors
    /// If it cannot be created, or exists.
    pub fn create(path: &Path, zero_unix_ns: u64) -> Result<Self> {
        let what = || format!("cannot record into {}", path.display());
        let mut file = File::create_new(path).context(what)?;
        file.write_all(&encode_header(zero_unix_ns)).context(what)?;
        Ok(Self::new(file, 0))
    }

    /// Opens a file to continue it after its last whole frame. Removes an incomplete frame after
    /// that.
    ///
    /// # Errors
    /// If it cannot be read, is not a native trace, or a frame other than the last is damaged.
    pub fn open(path: &Path) -> Result<(Self, Recorded)> {
        let what = || format!("cannot record into {}", path.display());
        let file = OpenOptions::new().read(true).write(true).open(path);
        let mut file = file.context(what)?;
        let size_bytes = file.metadata().context(what)?.len();
        let (recorded, end_bytes) =
            scan(BufReader::new(&mut file)).map_err(|error| error.context(what()))?;
        file.set_len(end_bytes).context(what)?;
        file.seek(SeekFrom::End(0)).context(what)?;
        let appender = Self::new(file, recorded.volumes.names().len());
        let cut_bytes = size_bytes - end_bytes;
        Ok((
            appender,
            Recorded {
                cut_bytes,
                ..recorded
            },
        ))
    }

    fn new(file: File, named: usize) -> Self {
        Self {
            file,
            frames: Frames {
                named,
                payload: Vec::new(),
            },
            bytes: Vec::new(),
        }
    }

    /// Appends requests, and the names of new volumes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, requests: &[Request], volumes: &Volumes) -> Result<()> {
        self.bytes.clear();
        self.frames.put(requests, volumes, &mut self.bytes);
        self.file
            .write_all(&self.bytes)
            .context(|| "cannot write the trace")
    }

    /// Records that `count` served requests are missing in the trace.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn lost(&mut self, count: u64) -> Result<()> {
        self.bytes.clear();
        self.frames.lost(count, &mut self.bytes);
        self.file
            .write_all(&self.bytes)
            .context(|| "cannot write the trace")
    }

    /// Makes the appended data durable.
    ///
    /// # Errors
    /// If the file system fails.
    pub fn sync(&self) -> Result<()> {
        self.file
            .sync_data()
            .context(|| "cannot make the trace durable")
    }
}

/// Reads up to the first frame that is not whole. Returns also the offset of that frame.
fn scan(mut file: impl Read) -> Result<(Recorded, u64)> {
    let corrupt = |why: &str| Error::new(ErrorKind::Corrupt, why.to_owned());
    let mut header = [0; HEADER_BYTES];
    if !read_whole(&mut file, &mut header)? {
        return Err(corrupt("it is cut off within its header"));
    }
    let mut recorded = Recorded {
        zero_unix_ns: decode_header(&header).map_err(corrupt)?,
        ..Recorded::default()
    };
    let mut end_bytes = HEADER_BYTES as u64;
    let (mut header, mut payload) = ([0; FRAME_BYTES], Vec::new());
    while read_whole(&mut file, &mut header)? {
        let damaged =
            |why: &str| corrupt(&format!("the frame at byte {end_bytes} is damaged: {why}"));
        let frame = decode_frame(&header).map_err(damaged)?;
        payload.resize(frame.payload_bytes, 0);
        if !read_whole(&mut file, &mut payload)? {
            break;
        }
        frame.check(&header, &payload).map_err(damaged)?;
        match frame.kind {
            Kind::Requests => recorded.requests += u64::from(frame.count),
            Kind::Lost => recorded.lost += u64::from(frame.count),
            Kind::Volumes => {
                let mut numbers = names(&payload).map(|name| recorded.volumes.number(name));
                if !numbers.all(|number| number.is_some()) {
                    return Err(damaged("it names too many volumes"));
                }
            }
        }
        end_bytes += (FRAME_BYTES + payload.len()) as u64;
    }
    Ok((recorded, end_bytes))
}

/// Fills `buffer`. Returns false if the file ends before.
fn read_whole(file: &mut impl Read, buffer: &mut [u8]) -> Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == IoErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error.into()),
    }
}
