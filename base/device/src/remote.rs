//! What a peer is asked, in the same way by each protocol: nothing that it would refuse, nothing that comes to nothing, and
//! in several requests what is longer than one may be.

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Error, ErrorKind, Op, Request,
    Result,
};
use forebay_io::rt;

/// Longest request without data, bytes. A whole number of any blocks.
pub(crate) const LONGEST_BYTES: u64 = 1 << 30;
/// Most zeroes that are sent at a time, bytes, where the peer has no command for them.
const ZEROES_BYTES: u64 = 1 << 20;

/// What a peer takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takes {
    /// Reads and flushes alone.
    pub(crate) read_only: bool,
    /// Most data in a request, bytes.
    pub(crate) data_bytes: u64,
    /// Longest write of zeroes, bytes; 0 if there is none.
    pub(crate) zeroes_bytes: u64,
}

impl Takes {
    /// The request, if it is to be asked as it is. Any other is answered here, or by a task for which `again` makes the
    /// device once more.
    pub(crate) fn whole<D: BlockDevice + 'static>(
        self,
        info: &DeviceInfo,
        request: Request,
        done: Completion,
        again: impl FnOnce() -> D,
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
        let device = again();
        rt::spawn(async move { done.complete(self.in_pieces(&device, request).await) });
        None
    }

    fn check(self, info: &DeviceInfo, request: &Request) -> Result<()> {
        info.check(request)?;
        if self.read_only && !matches!(request.op, Op::Read | Op::Flush) {
            return Err(ErrorKind::ReadOnly.into());
        }
        match request.op {
            Op::Write { fua: true } | Op::WriteZeroes { fua: true, .. } if !info.fua => {
                let what = format!("{} has no FUA: flush after the write", info.name);
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            _ => Ok(()),
        }
    }

    /// Longest request of this kind, bytes.
    const fn longest(self, op: Op) -> u64 {
        match op {
            Op::Read | Op::Write { .. } => self.data_bytes,
            Op::WriteZeroes { .. } => self.zeroes_bytes,
            Op::Flush | Op::Discard => LONGEST_BYTES,
        }
    }

    /// A request that is too long for one, or that the peer has another way for.
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
