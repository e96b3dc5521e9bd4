//! Options of one start.

use forebay_block::{Error, ErrorKind, Result};

use super::no_volume;
use crate::config::Config;

/// Options of one start, beyond the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Volumes to serve from their backing devices, without the cache.
    pub without_cache: Vec<String>,
    /// Volumes whose cache and backing device belong together, despite the state directory.
    pub adopt: Vec<String>,
    /// Volumes whose dirty data may be discarded if the volume was written without the cache.
    pub discard_stale_dirty: Vec<String>,
    /// Whether to open the cache although its process journal is gone.
    pub accept_journal_loss: bool,
    /// Whether the cache was copied to its devices, which replace the former ones.
    pub moved_cache: bool,
    /// Whether volumes continue without the cache in all modes, should it fail in service.
    pub allow_degraded: bool,
}

impl Wishes {
    /// Checks that the named volumes exist, and that no option contradicts another one.
    ///
    /// # Errors
    /// `NotFound` for a volume that does not exist; `InvalidInput` for a contradiction.
    pub fn check(&self, config: &Config) -> Result<()> {
        let named = [&self.without_cache, &self.adopt, &self.discard_stale_dirty];
        for name in named.into_iter().flatten() {
            if !config.volumes.iter().any(|volume| volume.name == *name) {
                return Err(no_volume(name, config.volumes.iter().map(|v| &*v.name)));
            }
        }
        self.check_contradictions(config)
    }

    /// Whether a start with these options decides something that no later start can take back.
    #[must_use]
    pub fn cannot_be_taken_back(&self) -> bool {
        let named = [&self.adopt, &self.discard_stale_dirty];
        named.into_iter().any(|names| !names.is_empty())
            || self.accept_journal_loss
            || self.moved_cache
    }

    /// Refuses options that would have no effect, since their volume is served without the cache.
    fn check_contradictions(&self, config: &Config) -> Result<()> {
        let refuse = |name: &str, option: &str, what: &str| {
            let what = format!(
                "--without-cache {name} contradicts {option}, which {what}\n    \
                 help: give one of the two"
            );
            Err(Error::new(ErrorKind::InvalidInput, what))
        };
        for name in &self.without_cache {
            if self.adopt.contains(name) {
                return refuse(name, &format!("--adopt {name}"), "uses the cache");
            }
            if self.discard_stale_dirty.contains(name) {
                let option = format!("--discard-stale-dirty {name}");
                return refuse(name, &option, "uses the cache");
            }
        }
        match self.without_cache.first() {
            Some(name) if self.moved_cache && self.all_without_cache(config) => {
                refuse(name, "--moved-cache", "needs a volume that uses the cache")
            }
            _ => Ok(()),
        }
    }

    /// Returns the reason why a volume, as served now, may lack acknowledged writes of an earlier
    /// process; `None` if no option causes that.
    pub(super) fn gap(&self, volume: &str) -> Option<String> {
        let named = |list: &[String]| list.iter().any(|name| name == volume);
        let asked = if named(&self.adopt) {
            "--adopt"
        } else if named(&self.without_cache) {
            "--without-cache"
        } else if named(&self.discard_stale_dirty) {
            "--discard-stale-dirty"
        } else if self.accept_journal_loss {
            "--accept-journal-loss"
        } else {
            return None;
        };
        Some(format!("the daemon was started with {asked}"))
    }

    /// Whether no volume is served from the cache. The cache is not opened then, since it may be
    /// the reason for these options.
    #[must_use]
    pub fn all_without_cache(&self, config: &Config) -> bool {
        let mut volumes = config.volumes.iter();
        volumes.all(|volume| self.without_cache.contains(&volume.name))
    }
}
