//! Scrubbing an open stack.

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_cache::ScrubProgress;

use super::Stack;
use super::cache::Opened;
use crate::status::ScrubStatus;
use forebay_terminal::size::{human_bytes, human_count};

/// Default rate of a scrub, bytes per second: little compared with a cache device.
const BYTES_PER_SECOND: u64 = 64 << 20;

impl Stack {
    fn scrubbed(&self) -> Result<Rc<Opened>> {
        let Some(cache) = &self.cache else {
            let what = "there is no cache to scrub\n\
                        help: add a [cache] to the configuration, and restart the daemon";
            return Err(Error::new(ErrorKind::InvalidInput, what));
        };
        cache.if_open().ok_or_else(|| {
            let what = "the cache is being opened\n\
                        help: repeat the command when it is open (`forebay status`)";
            Error::new(ErrorKind::Busy, what)
        })
    }

    /// Verifies all cached data. Returns a description of the result.
    ///
    /// # Errors
    /// `InvalidInput` without a cache, `Unsupported` for one without checksums, `Busy` during
    /// another scrub. `Corrupt` if dirty data is corrupt, naming the first range.
    pub async fn scrub(&self, bytes_per_second: Option<u64>) -> Result<String> {
        let rate = bytes_per_second.unwrap_or(BYTES_PER_SECOND);
        let found = self.scrubbed()?.cache.scrub(rate).await?;
        let text = in_words(&found);
        match found.first {
            None => Ok(text),
            Some(first) => {
                let what = format!("{text}\nhelp: rewrite this data from a backup: {first}");
                Err(Error::new(
                    ErrorKind::Corrupt,
                    what.replace("\n    help: ", "; "),
                ))
            }
        }
    }

    /// Stops a scrub. Returns a description of the result.
    ///
    /// # Errors
    /// `InvalidInput` without a cache.
    pub fn stop_scrub(&self) -> Result<String> {
        Ok(match self.scrubbed()?.cache.stop_scrub() {
            true => "the scrub ends".to_owned(),
            false => "no scrub is under way".to_owned(),
        })
    }

    /// Describes the progress of the scrub.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<String> {
        let progress = self.scrubbed().ok()?.cache.scrub_progress()?;
        Some(in_words(&progress))
    }
}

fn in_words(scrub: &ScrubProgress) -> String {
    let far = match (scrub.running, scrub.stopped) {
        (true, _) => format!(
            "scrub: {} of {}",
            scrub.blocks_done,
            human_count(scrub.blocks, "block")
        ),
        (false, true) => format!(
            "scrub stopped after {}",
            human_count(scrub.blocks_done, "block")
        ),
        (false, false) => format!("scrubbed {}", human_count(scrub.blocks_done, "block")),
    };
    format!(
        "{far}, {} read, {} refetched, {} with corrupt dirty data, {}",
        human_bytes(scrub.read_bytes),
        human_count(scrub.refetched, "corrupt piece"),
        human_count(scrub.corrupt_blocks, "block"),
        human_count(scrub.errors, "read error"),
    )
}

/// Returns the progress for the status.
pub(super) fn status(scrub: ScrubProgress) -> ScrubStatus {
    ScrubStatus {
        text: in_words(&scrub),
        running: scrub.running,
        stopped: scrub.stopped,
        read_bytes: scrub.read_bytes,
        blocks_done: scrub.blocks_done,
        blocks: scrub.blocks,
        refetched: scrub.refetched,
        corrupt_blocks: scrub.corrupt_blocks,
        errors: scrub.errors,
        first: scrub.first,
    }
}
