//! Allocation of an export, from the context `base:allocation` of its server.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use forebay_block::{Allocation, Buf, Extents, Result};
use forebay_wire::nbd::MAX_PAYLOAD_BYTES;
use forebay_wire::nbd::context::{BlockStatus, CONTEXT_ID_BYTES, DESCRIPTOR_BYTES, state};

use super::line::Line;
use crate::receiver::Receiver;

/// Maximum number of descriptors of an answer that count. The next query asks for the rest.
const MAX_DESCRIPTORS: usize = 4096;
/// Length of the pieces in which further descriptors are received and dropped, bytes.
const DROP_BYTES: u32 = 64 << 10;

/// Place for the answer to a query, in its request.
pub(super) type Answer = Rc<RefCell<Option<Extents>>>;

/// Receives the payload of a chunk of `length` bytes. Returns `None` if it is no status.
pub(super) async fn receive(
    receiver: &mut Receiver<Line>,
    length: u32,
) -> Result<Option<BlockStatus>> {
    let most = CONTEXT_ID_BYTES + MAX_DESCRIPTORS * DESCRIPTOR_BYTES;
    let descriptors = (length as usize).wrapping_sub(CONTEXT_ID_BYTES);
    let is_whole = descriptors.is_multiple_of(DESCRIPTOR_BYTES);
    if length > MAX_PAYLOAD_BYTES || !is_whole {
        return Ok(None);
    }
    let first = Buf::scratch((length as usize).min(most));
    receiver.data(&first).await?;
    let mut left = length - u32::try_from(first.len()).expect("a part of it");
    while left > 0 {
        let piece = Buf::scratch(left.min(DROP_BYTES) as usize);
        receiver.data(&piece).await?;
        left -= left.min(DROP_BYTES);
    }
    Ok(BlockStatus::decode(&first.to_vec()).ok())
}

/// Returns the extents of `range`, bytes, by a server's status. Unknown flags make data. So does a
/// hole that need not read as zeroes.
pub(super) fn extents(status: &BlockStatus, range: &Range<u64>) -> Extents {
    let mut found = Extents::default();
    let mut at = range.start;
    for descriptor in &status.descriptors {
        if at >= range.end || found.is_full() {
            break;
        }
        // The last one may be longer than the request.
        let end = (at + u64::from(descriptor.length)).min(range.end);
        let allocation = match descriptor.flags {
            state::ZERO => Allocation::Zero,
            flags if flags == state::HOLE | state::ZERO => Allocation::Hole,
            _ => Allocation::Data,
        };
        found.push(at..end, allocation);
        at = end;
    }
    found
}

#[cfg(test)]
mod tests {
    use forebay_wire::nbd::context::Descriptor;

    use super::*;

    #[test]
    fn extents_without_the_zero_flag_are_data() {
        let lengths = [512, 1024, 512, 512, 512, u32::MAX];
        let flags = [3, 1, 2, 0, 7, 3];
        let descriptors = lengths.into_iter().zip(flags);
        let status = BlockStatus {
            context: 1,
            descriptors: descriptors
                .map(|(length, flags)| Descriptor { length, flags })
                .collect(),
        };
        let mut expected = Extents::default();
        expected.push(4096..4608, Allocation::Hole);
        expected.push(4608..5632, Allocation::Data);
        expected.push(5632..6144, Allocation::Zero);
        expected.push(6144..7168, Allocation::Data);
        expected.push(7168..8192, Allocation::Hole);
        assert_eq!(extents(&status, &(4096..8192)), expected);
        // An answer may cover less, and ends with the request.
        assert_eq!(extents(&status, &(4096..4608)).end(), Some(4608));
        let mut short = status;
        short.descriptors.truncate(1);
        assert_eq!(extents(&short, &(4096..8192)).end(), Some(4608));
    }
}
