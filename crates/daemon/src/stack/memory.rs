//! What a configuration needs of memory, and whether the process may have that much.
//!
//! A map that does not fit is told before it is allocated: later, the allocation ends the process, or the kernel does.

use std::fmt;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::limits::{MemoryLimit, memory_limit};
use forebay_policy::PromotionFilter;

use crate::config::size::human_bytes;
use crate::config::{Config, DeviceKind, Promotion};

/// Memory that is taken for requests in flight where a volume is a file or block device of this machine's: what FUSE
/// admits (32 MiB), rounded up to powers of two, and as much again on free lists, in bytes.
pub(crate) const RESERVE_BYTES: u64 = 128 << 20;

/// What a cache takes of memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheNeeds {
    /// Blocks of the smallest size.
    pub(crate) blocks: u32,
    /// The most that its map takes, in bytes.
    pub(crate) map_bytes: u64,
}

/// What a configuration needs, each with what for, in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Needs(Vec<(String, u64)>);

impl Needs {
    /// Sums what a configuration needs. Without its cache, it is what is certain before that is looked at.
    pub(crate) fn of(config: &Config, cache: Option<CacheNeeds>) -> Self {
        let mut needs = Vec::new();
        if let Some(cache) = cache {
            needs.push(("the map of the cache".to_owned(), cache.map_bytes));
            for volume in &config.volumes {
                if matches!(volume.promotion, Promotion::Nhit { hits } if hits > 1) {
                    let per_block = PromotionFilter::BYTES_PER_BLOCK as u64;
                    let bytes = u64::from(cache.blocks) * per_block;
                    needs.push((format!("promotion of volume {:?}", volume.name), bytes));
                }
            }
        }
        if let Some(cache) = &config.cache {
            needs.push(("the process journal".to_owned(), cache.journal_bytes));
        }
        for device in &config.devices {
            match device.kind {
                DeviceKind::Mem { size_bytes, .. } => {
                    needs.push((format!("memory device {:?}", device.name), size_bytes));
                }
                DeviceKind::Transit { capacity_bytes, .. } => {
                    needs.push((format!("transit cache {:?}", device.name), capacity_bytes));
                }
                _ => {}
            }
        }
        if config
            .exports
            .iter()
            .any(|export| export.protocol.is_local())
        {
            needs.push(("block devices and FUSE".to_owned(), RESERVE_BYTES));
        }
        Self(needs)
    }

    /// Returns the sum, in bytes.
    fn total(&self) -> u64 {
        let bytes = self.0.iter().map(|(_, bytes)| *bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Checks that the process may have that much.
    ///
    /// # Errors
    /// `NoSpace` with what needs how much, and whose the limit is.
    pub(crate) fn check(&self) -> Result<()> {
        self.check_against(&memory_limit())
    }

    fn check_against(&self, limit: &MemoryLimit) -> Result<()> {
        if self.total() <= limit.bytes {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the daemon needs {} of memory, and may have {} ({})\n\
                 help: raise that limit, or make smaller: {self}",
                human_bytes(self.total()),
                human_bytes(limit.bytes),
                limit.who,
            ),
        ))
    }

    /// What is needed, in a line for people.
    pub(crate) fn line(&self) -> String {
        format!(
            "memory when all is full: {} ({self})",
            human_bytes(self.total())
        )
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut needs = self.0.clone();
        needs.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let words: Vec<String> = (needs.iter())
            .map(|(what, bytes)| format!("{what} {}", human_bytes(*bytes)))
            .collect();
        f.write_str(&words.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TEXT: &str = r#"
device = [
    { name = "ssd", kind = "file", path = "cache" },
    { name = "disk", kind = "file", path = "disk" },
    { name = "memory", kind = "mem", size = "3M" },
    { name = "fast", kind = "transit", on = "disk", capacity = "5M" },
]
cache = { data = "ssd", journal_size = "2M" }
volume = [
    { name = "db", backing = "fast", promotion = "nhit:2" },
    { name = "logs", backing = "memory", promotion = "nhit:1" },
]
"#;

    #[test]
    fn everything_that_takes_memory_is_summed() {
        let config = Config::parse(Path::new("f.toml"), TEXT).expect("right");
        let cache = CacheNeeds {
            blocks: 1 << 16,
            map_bytes: 7 << 20,
        };
        let needs = Needs::of(&config, Some(cache));
        assert_eq!(needs.total(), (7 + 1 + 2 + 3 + 5) << 20, "{needs}");
        assert_eq!(Needs::of(&config, None).total(), (2 + 3 + 5) << 20);
        let limit = |bytes| MemoryLimit {
            bytes,
            who: "a test".into(),
        };
        needs.check_against(&limit(18 << 20)).expect("it fits");
        let refused = needs.check_against(&limit((18 << 20) - 1));
        let report = refused.expect_err("it does not").report();
        for part in [
            "needs 18 MiB",
            "(a test)",
            "map of the cache 7 MiB",
            "\"fast\" 5 MiB",
        ] {
            assert!(report.contains(part), "{part}: {report}");
        }
    }

    #[test]
    fn what_is_larger_than_any_memory_does_not_wrap() {
        let text = TEXT
            .replace("\"3M\"", "\"15000000T\"")
            .replace("\"5M\"", "\"15000000T\"");
        let Ok(config) = Config::parse(Path::new("f.toml"), &text) else {
            return assert!(Config::parse(Path::new("f.toml"), TEXT).is_ok());
        };
        let refused = Needs::of(&config, None).check_against(&memory_limit());
        assert!(refused.is_err());
    }
}
