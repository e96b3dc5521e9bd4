//! Write-back of pages that no program flushes.

use std::time::Duration;

use forebay_pagecache::client::Client;
use forebay_pagecache::store::Store;

use super::Stop;
use crate::link::Way;

/// Rounds of write-back within the expiry of written pages.
const ROUNDS: u32 = 4;

/// Puts written pages into the store that no program flushes.
pub(super) fn write_back_expired<S: Store>(
    client: &Client<S, Way>,
    expiry: Duration,
    dirty_pages: usize,
    stop: &Stop,
) {
    let round = (expiry / ROUNDS).max(Duration::from_millis(1));
    while !stop.sleep(round) {
        // All operations report that the client is broken.
        let _ = client.write_back_expired(u64::from(ROUNDS) - 1, dirty_pages);
    }
}
