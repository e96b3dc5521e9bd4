//! Limits of a peer: requests that it would refuse fail here, requests without effect complete
//! here, and longer ones are split.

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Error, ErrorKind, Op, Request,
    Result,
};
use forebay_io::rt;

/// Maximum length of a request without data, bytes. A multiple of every block size.
pub(crate) const LONGEST_BYTES: u64 = 1 << 30;
/// Maximum length of zeroes in one write, bytes, if the peer has no command for zeroes.
const ZEROES_BYTES: u64 = 1 << 20;

/// Limits of the requests that a peer accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestLimits {
    /// Whether it accepts only reads and flushes.
    pub(crate) read_only: bool,
    /// Maximum data in a request, bytes.
    pub(crate) data_bytes: u64,
    /// Maximum length of a write-zeroes, bytes; 0 if there is none.
    pub(crate) zeroes_bytes: u64,
}

impl RequestLimits {
    /// Returns the request if it can be sent as it is. Completes a request that the peer would
    /// refuse, or that has no effect. Splits a longer one: a task sends its parts to the device
    /// that `handle` returns.
    pub(crate) fn admit<D: BlockDevice + 'static>(
        self,
        info: &DeviceInfo,
        request: Request,
        done: Completion,
        handle: impl FnOnce() -> D,
    ) -> Option<(Request, Completion)> {
        let nothing_to_do = match request.op {
            Op::Flush => !info.volatile_cache,
            Op::Discard => !info.discard,
            _ => false,
        };
        let refused = self.check(info, &request);
        if refused.is_err() || nothing_to_do {
            done.complete(refused);
            return None;
        }
        if request.len <= self.longest(request.op) {
            return Some((request, done));
        }
        let device = handle();
        rt::spawn(async move { done.complete(self.in_pieces(&device, request).await) });
        None
    }

    /// Checks that the peer accepts such a request, whatever its length.
    ///
    /// # Errors
    /// `ReadOnly` and `Unsupported`, besides those of [`DeviceInfo::check`].
    fn check(self, info: &DeviceInfo, request: &Request) -> Result<()> {
        info.check(request)?;
        if self.read_only && !matches!(request.op, Op::Read | Op::Flush) {
            return Err(ErrorKind::ReadOnly.into());
        }
        match request.op {
            Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. } if !info.fua => {
                let what = format!(
                    "{} does not support FUA\nhelp: flush after the write",
                    info.name
                );
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            _ => Ok(()),
        }
    }

    /// Returns the maximum length of a request of this kind, bytes.
    const fn longest(self, op: Op) -> u64 {
        match op {
            Op::Read | Op::Write { .. } => self.data_bytes,
            Op::WriteZeroes { .. } => self.zeroes_bytes,
            Op::Flush | Op::Discard => LONGEST_BYTES,
        }
    }

    /// Executes a request that is too long, or that needs another command, in pieces.
    async fn in_pieces(self, device: &impl BlockDevice, request: Request) -> Result<()> {
        let (op, longest) = match request.op {
            Op::WriteZeroes { fua, .. } if self.zeroes_bytes == 0 => {
                (Op::Write { fua }, ZEROES_BYTES.min(self.data_bytes))
            }
            op => (op, self.longest(op)),
        };
        let zeroes = match (&request.buf, op) {
            (None, Op::Write { .. }) => Some(Buf::zeroed(usize_of(longest.min(request.len)))),
            _ => None,
        };
        let mut at = 0;
        while at < request.len {
            let len = longest.min(request.len - at);
            let buf = match (&request.buf, &zeroes) {
                (Some(buf), _) => Some(buf.slice(usize_of(at)..usize_of(at + len))),
                (None, Some(zeroes)) => Some(zeroes.slice(0..usize_of(len))),
                (None, None) => None,
            };
            let offset = request.offset + at;
            let piece = Request {
                op,
                offset,
                len,
                buf,
            };
            device.start(piece).await?;
            at += len;
        }
        Ok(())
    }
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("as long as a buffer")
}
