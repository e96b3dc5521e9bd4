//! The metadata context `base:allocation`: its choice, and the status of blocks in it.

use std::ops::Range;

use forebay_block::{Allocation, BlockDevice, Error};
use forebay_wire::nbd::context::{
    BASE_ALLOCATION, BlockStatus, Context, ContextRequest, Descriptor, ExtendedStatus, state,
};
use forebay_wire::nbd::errno;
use forebay_wire::nbd::handshake::{OptionReply, option, reply};

use super::export::{Exports, unknown};
use super::headers::Headers;

/// Identifier of the context in chunks.
const ALLOCATION_ID: u32 = 1;
/// Maximum length of a range that one answer is about, bytes.
const MAX_STATUS_BYTES: u64 = 4 << 30;

/// Answers LIST_META_CONTEXT or SET_META_CONTEXT. Returns the name of the volume for which the
/// context was selected.
pub(super) fn answer(
    asked: u32,
    data: &[u8],
    headers: Headers,
    exports: &Exports,
    out: &mut Vec<u8>,
) -> Option<String> {
    let mut refuse = |kind: u32, why: &str| {
        OptionReply::append(out, asked, kind, why.as_bytes());
    };
    if !headers.have_chunks() {
        refuse(reply::ERR_INVALID, "this needs structured replies");
        return None;
    }
    let request = match ContextRequest::decode(data) {
        Ok(request) => request,
        Err(error) => {
            refuse(reply::ERR_INVALID, &error.to_string());
            return None;
        }
    };
    let Some(export) = exports.find(&request.name) else {
        refuse(reply::ERR_UNKNOWN, &unknown(&request.name).to_string());
        return None;
    };
    if !request.queries.iter().all(|query| query.contains(':')) {
        refuse(reply::ERR_INVALID, "a query without a namespace");
        return None;
    }
    let lists = asked == option::LIST_META_CONTEXT;
    // Unknown namespaces and names are ignored. A namespace alone, or no query, lists all of it.
    let is_meant = |query: &String| query == BASE_ALLOCATION || lists && query == "base:";
    let found = request.queries.iter().any(is_meant) || lists && request.queries.is_empty();
    if found {
        let context = Context {
            id: if lists { 0 } else { ALLOCATION_ID },
            name: BASE_ALLOCATION.to_owned(),
        };
        OptionReply::append(out, asked, reply::META_CONTEXT, &context.encode());
    }
    OptionReply::append(out, asked, reply::ACK, &[]);
    (found && !lists).then(|| export.volume.name().to_owned())
}

/// Returns the payload of the answer to BLOCK_STATUS for a range, or an error number. `one` limits
/// it to one descriptor. An answer may cover less than the range.
pub(super) async fn block_status(
    device: &dyn BlockDevice,
    range: Range<u64>,
    one: bool,
    headers: Headers,
) -> Result<Vec<u8>, u32> {
    let error_number = |error: Error| errno(error.kind(), false);
    let end = range.end.min(range.start.saturating_add(MAX_STATUS_BYTES));
    let found = device.extents(range.start..end).await;
    let found = found.map_err(error_number)?;
    let most = if one { 1 } else { usize::MAX };
    let states = found.iter().take(most).map(|extent| {
        let flags = match extent.allocation {
            Allocation::Data => 0,
            Allocation::Hole => state::HOLE | state::ZERO,
            Allocation::Zero => state::ZERO,
        };
        (extent.bytes.end - extent.bytes.start, flags)
    });
    Ok(match headers {
        Headers::Extended => ExtendedStatus {
            context: ALLOCATION_ID,
            descriptors: states
                .map(|(length, flags)| (length, u64::from(flags)))
                .collect(),
        }
        .encode(),
        Headers::Simple | Headers::Structured => BlockStatus {
            context: ALLOCATION_ID,
            descriptors: states
                .map(|(length, flags)| Descriptor {
                    length: u32::try_from(length).expect("at most the requested length"),
                    flags,
                })
                .collect(),
        }
        .encode(),
    })
}
