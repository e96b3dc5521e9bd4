//! The smallest NBD client that can read, write and flush: fixed newstyle, EXPORT_NAME, simple
//! replies, one request at a time (the NBD protocol's doc/proto.md).

use std::io::{Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A connection in the transmission phase.
#[derive(Debug)]
pub struct Nbd {
    stream: UnixStream,
    /// Size of the export, bytes.
    pub size_bytes: u64,
}

impl Nbd {
    /// Connects to the export of this name.
    ///
    /// # Errors
    /// Returns the socket's error, or the end of the connection if the server has no such export.
    ///
    /// # Panics
    /// Panics if the greeting is not that of NBD.
    pub fn connect(socket: &Path, export: &str) -> Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeroes.
        stream.write_all(&3_u32.to_be_bytes())?;
        let mut option = b"IHAVEOPT".to_vec();
        option.extend_from_slice(&1_u32.to_be_bytes());
        option.extend_from_slice(&(export.len() as u32).to_be_bytes());
        option.extend_from_slice(export.as_bytes());
        stream.write_all(&option)?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply)?;
        let (size, _flags) = reply.split_at(8);
        let size_bytes = u64::from_be_bytes(size.try_into().expect("eight bytes"));
        Ok(Self { stream, size_bytes })
    }

    fn request(&mut self, kind: u16, offset: u64, len: u32, data: &[u8]) -> Result<u32> {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0_u16.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&1_u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&len.to_be_bytes());
        request.extend_from_slice(data);
        self.stream.write_all(&request)?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        Ok(u32::from_be_bytes(
            reply[4..8].try_into().expect("four bytes"),
        ))
    }

    /// Reads a range. Returns the data, or the server's error number if it is not zero.
    ///
    /// # Errors
    /// Returns the socket's error.
    ///
    /// # Panics
    /// Panics if the reply breaks the protocol.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<std::result::Result<Vec<u8>, u32>> {
        let error = self.request(0, offset, len, &[])?;
        if error != 0 {
            return Ok(Err(error));
        }
        let mut data = vec![0; len as usize];
        self.stream.read_exact(&mut data)?;
        Ok(Ok(data))
    }

    /// Writes a range. Returns the server's error number.
    ///
    /// # Errors
    /// Returns the socket's error.
    ///
    /// # Panics
    /// Panics if the reply breaks the protocol.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32> {
        self.request(1, offset, data.len() as u32, data)
    }

    /// Flushes. Returns the server's error number.
    ///
    /// # Errors
    /// Returns the socket's error.
    ///
    /// # Panics
    /// Panics if the reply breaks the protocol.
    pub fn flush(&mut self) -> Result<u32> {
        self.request(3, 0, 0, &[])
    }
}
