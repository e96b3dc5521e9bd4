//! What a configuration needs of memory, and whether the process may have that much.
//!
//! A map that does not fit is told before it is allocated: later, the allocation ends the process, or the kernel does.

use std::fmt;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::limits::{MemoryLimit, memory_limit};
use forebay_policy::PromotionFilter;

use crate::config::{Config, DeviceKind, Promotion};
use forebay_terminal::size::human_bytes;

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

/// What a part of a configuration needs.
#[derive(Clone, Debug)]
struct Need {
    /// What for, in words.
    what: String,
    /// The memory, in bytes.
    bytes: u64,
    /// The place in the configuration that says so, and what stands there.
    place: String,
    /// How it needs less, in words.
    help: &'static str,
}

/// What a configuration needs.
#[derive(Clone, Debug)]
pub(crate) struct Needs(Vec<Need>);

impl Needs {
    /// Sums what a configuration needs. Without its cache, it is what is certain before that is looked at.
    pub(crate) fn of(config: &Config, cache: Option<CacheNeeds>) -> Self {
        let mut needs = Vec::new();
        let mut need = |line: usize, whose: String, what: String, bytes: u64, help| {
            let place = format!("{}: {whose}", config.place(line));
            needs.push(Need {
                what,
                bytes,
                place,
                help,
            });
        };
        if let (Some(known), Some(cache)) = (cache, &config.cache) {
            let what = "the map of the cache".to_owned();
            let help = "format the cache with larger blocks, or a smaller one";
            need(cache.line, "the cache".into(), what, known.map_bytes, help);
            for volume in &config.volumes {
                if matches!(volume.promotion, Promotion::Nhit { hits } if hits > 1) {
                    let bytes = u64::from(known.blocks) * PromotionFilter::BYTES_PER_BLOCK as u64;
                    let whose = format!("volume {:?}", volume.name);
                    let what = format!("promotion of {whose}");
                    need(
                        volume.line,
                        whose,
                        what,
                        bytes,
                        "use `promotion = \"always\"`",
                    );
                }
            }
        }
        if let Some(cache) = &config.cache {
            let what = "the process journal".to_owned();
            let help = "use a smaller `journal_size`";
            need(
                cache.line,
                "the cache".into(),
                what,
                cache.journal_bytes,
                help,
            );
        }
        for device in &config.devices {
            let whose = format!("device {:?}", device.name);
            match device.kind {
                DeviceKind::Mem { size_bytes, .. } => {
                    let what = format!("memory {whose}");
                    need(device.line, whose, what, size_bytes, "use a smaller `size`");
                }
                DeviceKind::Transit { capacity_bytes, .. } => {
                    let what = format!("transit cache {:?}", device.name);
                    let help = "use a smaller `capacity`";
                    need(device.line, whose, what, capacity_bytes, help);
                }
                _ => {}
            }
        }
        let local = (config.exports.iter()).find(|export| export.protocol.is_local());
        if let Some(export) = local {
            let what = "block devices and FUSE".to_owned();
            let help = "serve the volume on another protocol";
            need(export.line, "the export".into(), what, RESERVE_BYTES, help);
        }
        Self(needs)
    }

    /// Returns the sum, in bytes.
    fn total(&self) -> u64 {
        let bytes = self.0.iter().map(|need| need.bytes);
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
        let largest = self.0.iter().max_by_key(|need| need.bytes);
        let (place, help) = largest.map_or(("", ""), |need| (&need.place, need.help));
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "{place}: the daemon needs {} of memory, and may have {} ({})\n\
                 help: {help}, or raise that limit; needed are {self}",
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
        needs.sort_by_key(|need| std::cmp::Reverse(need.bytes));
        let words: Vec<String> = (needs.iter())
            .map(|need| format!("{} {}", need.what, human_bytes(need.bytes)))
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
