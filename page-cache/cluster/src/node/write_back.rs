//! Write-back of pages that no program flushes.

use std::time::{Duration, Instant};

use forebay_pagecache::client::Client;
use forebay_pagecache::store::Store;

use super::Stop;
use crate::link::DirectoryLink;

/// Longest wait of an operation that writes for the write-back of dirty pages. Then it continues:
/// the frames bound the memory, and a mount has few threads.
pub const THROTTLE_MAX: Duration = Duration::from_secs(1);

/// Longest pause between two checks for expired writes, and after a refused write-back.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Checks for expired writes within the expiry.
const CHECKS: u32 = 4;

/// Puts written pages into the store that no program flushes.
pub(super) fn write_back_expired<S: Store>(
    client: &Client<S, DirectoryLink>,
    began: Instant,
    expiry: Duration,
    dirty_pages: usize,
    stop: &Stop,
) {
    let pause = (expiry / CHECKS).clamp(Duration::from_millis(1), PAUSE_MAX);
    while !stop.is_set() {
        client.wait_dirty(pause);
        let written = client.write_back_expired(began.elapsed(), expiry, dirty_pages);
        // All operations report that the client is broken.
        if !written.unwrap_or(false) {
            stop.sleep(pause);
        }
    }
}
