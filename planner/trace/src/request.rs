//! One request of a trace.

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Data to the client.
    Read,
    /// Data from the client.
    Write,
    /// Make acknowledged writes durable; `offset_bytes` and `len_bytes` are zero.
    Flush,
    /// The range's content is no longer needed.
    Discard,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Time of arrival, nanoseconds since the trace's first request. Traces are not always ordered
    /// by time. Requests of a trace without times count up by one.
    pub time_ns: u64,
    /// First byte on the volume.
    pub offset_bytes: u64,
    /// Length in bytes; never zero for a read or a write.
    pub len_bytes: u32,
    /// The volume, numbered from zero in order of first appearance.
    pub volume: u32,
    /// Operation.
    pub op: Op,
}

impl Request {
    /// Returns the offset after the last byte.
    #[must_use]
    pub const fn end_bytes(&self) -> u64 {
        self.offset_bytes + self.len_bytes as u64
    }
}
