//! Computes the memory that a configuration needs, and checks that the process may use it.
//!
//! A map that does not fit is reported before it is allocated. Later, the failed allocation or the
//! kernel would end the process.

use std::collections::BTreeSet;
use std::fmt;

use forebay_block::{Error, ErrorKind, Result};
use forebay_frontend::{MAX_CONNECTIONS, fuse, nbd, nvme_tcp, vhost_user};
use forebay_io::limits::{MemoryLimit, memory_limits};
use forebay_metadata::superblock::Superblock;
use forebay_policy::PromotionFilter;

use crate::config::{Config, DeviceKind, Export, Promotion, Protocol};
use forebay_terminal::size::human_bytes;

/// Memory reserved for requests in flight if a volume is a file or block device of this machine,
/// bytes. It is the limit of FUSE (32 MiB), rounded up to powers of two, twice for free lists.
pub(crate) const RESERVE_BYTES: u64 = 128 << 20;
/// Memory for the requests of each further export of that kind, rounded up likewise, bytes.
const LOCAL_BYTES: u64 = 64 << 20;
/// Memory of a daemon without devices and exports: code, threads, control, log; bytes.
const PROCESS_BYTES: u64 = 32 << 20;
/// Memory of librbd for an image, bytes: about twenty threads with stacks of 8 MiB, tables, and
/// copies of the data of requests. The stacks are locked where memory is locked.
const IMAGE_BYTES: u64 = 448 << 20;
/// Memory of a volume in object storage: one open batch and four sealed ones of 8 MiB, each with
/// its compressed copy, and stacks; bytes.
const OBJECT_BYTES: u64 = 96 << 20;
/// Number of connections that sockets can always have, so that one client is served.
const FEWEST_CONNECTIONS: u64 = 1;
/// A start warns if fewer connections than this are possible.
pub(crate) const FEW_CONNECTIONS: u64 = 64;

/// Memory needs of a cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheNeeds {
    /// Number of blocks of the smallest size.
    pub(crate) blocks: u32,
    /// Largest size of its map, bytes.
    pub(crate) map_bytes: u64,
}

impl CacheNeeds {
    /// Returns the needs of a cache.
    pub(crate) fn of(found: &Superblock) -> Self {
        Self {
            blocks: found.slots,
            map_bytes: forebay_cache::memory_needed(found),
        }
    }
}

/// Memory need of one part of a configuration.
#[derive(Clone, Debug)]
struct Need {
    /// Description of its use.
    what: String,
    /// Largest memory, bytes.
    bytes: u64,
    /// Memory that is taken whatever clients do, bytes. The rest is taken when requests need it.
    taken_bytes: u64,
    /// Place in the configuration, and the value there.
    place: String,
    /// Remedy that reduces the need.
    help: &'static str,
}

/// Memory needs of a configuration.
#[derive(Clone, Debug)]
pub(crate) struct Needs {
    needs: Vec<Need>,
    /// Most memory of a connection, bytes; zero without exports on sockets.
    connection_bytes: u64,
    /// Number of connections that all listeners accept if memory suffices.
    most_connections: u64,
    /// Size of mapped files, bytes. They use address space, not memory.
    mapped_bytes: u64,
}

impl Needs {
    /// Sums the needs of a configuration. Without `cache`, the sum has only the needs that are
    /// known before the cache is read.
    pub(crate) fn of(config: &Config, cache: Option<CacheNeeds>) -> Self {
        let mut needs = Vec::new();
        let mut add = |line: usize, whose: String, what: String, bytes: [u64; 2], help| {
            let place = format!("{}: {whose}", config.place(line));
            let [bytes, taken_bytes] = bytes;
            needs.push(Need {
                what,
                bytes,
                taken_bytes,
                place,
                help,
            });
        };
        let mut need = |line, whose, what, bytes, help| add(line, whose, what, [bytes; 2], help);
        if let (Some(known), Some(cache)) = (cache, &config.cache) {
            let what = "the map of the cache".to_owned();
            let help =
                "detach the volumes, and format the cache with larger blocks, or a smaller one";
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
                DeviceKind::Object(_) => {
                    let help = "use fewer devices of kind object";
                    let what = "uploads".to_owned();
                    need(device.line, whose, what, OBJECT_BYTES, help);
                }
                DeviceKind::Rbd(_) => {
                    let help = "use fewer devices of kind rbd";
                    need(device.line, whose, "librbd".to_owned(), IMAGE_BYTES, help);
                }
                _ => {}
            }
        }
        for (export, what, bytes) in requests(config) {
            let help = "export fewer volumes, or export them on other protocols";
            add(export.line, "the export".into(), what, bytes, help);
        }
        let reactors = config.server.reactors as u64;
        let (own, shared) = forebay_block::POOL_BYTES;
        let bytes = PROCESS_BYTES + reactors * own as u64 + shared as u64;
        let bytes = [bytes, PROCESS_BYTES];
        let help = "use fewer `reactors`";
        add(1, "[server]".into(), "the process".into(), bytes, help);
        let connection_bytes = connection_bytes(config);
        let mut needs = Self {
            needs,
            connection_bytes,
            most_connections: listeners(config) * MAX_CONNECTIONS,
            mapped_bytes: mapped_bytes(config),
        };
        if let Some(export) = (config.exports.iter()).find(|it| connection_of(it) > 0) {
            let place = format!("{}: the export", config.place(export.line));
            needs.needs.push(Need {
                what: "requests of a connection".into(),
                bytes: connection_bytes * FEWEST_CONNECTIONS,
                taken_bytes: 0,
                place,
                help: "serve the volume on another protocol",
            });
        }
        needs
    }

    /// Returns the least need, with as few connections as possible, bytes.
    fn total(&self) -> u64 {
        let bytes = self.needs.iter().map(|need| need.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the need that counts towards a limit, bytes.
    ///
    /// An allocation beyond a limit of address space ends the process, so the largest need counts.
    /// Other limits count used memory, and requests seldom use all that they may: they count the
    /// memory that is taken whatever clients do.
    fn total_of(&self, limit: &MemoryLimit) -> u64 {
        match limit.is_address_space {
            true => self.total().saturating_add(self.mapped_bytes),
            false => {
                let taken = self.needs.iter().map(|need| need.taken_bytes);
                taken.fold(0, u64::saturating_add)
            }
        }
    }

    /// Checks that the process may use that much memory.
    ///
    /// # Errors
    /// `NoSpace` with each need and its size, and the owner of the limit.
    pub(crate) fn check(&self) -> Result<()> {
        memory_limits()
            .iter()
            .try_for_each(|limit| self.check_against(limit))
    }

    /// Returns the number of connections whose requests fit into the remaining address space, and
    /// the limit's owner; `None` without exports on sockets.
    pub(crate) fn connections(&self) -> Option<(u64, String)> {
        (self.connection_bytes > 0).then(|| self.connections_within(&memory_limits()))
    }

    fn connections_within(&self, limits: &[MemoryLimit]) -> (u64, String) {
        let hard = limits.iter().filter(|limit| limit.is_address_space);
        let left = hard.map(|limit| {
            let left = limit.bytes.saturating_sub(self.total_of(limit));
            (left / self.connection_bytes.max(1), &limit.who)
        });
        match left.min() {
            Some((left, who)) => {
                let connections = (left + FEWEST_CONNECTIONS).min(self.most_connections);
                (connections, who.clone())
            }
            None => (self.most_connections, String::new()),
        }
    }

    fn check_against(&self, limit: &MemoryLimit) -> Result<()> {
        let needed = self.total_of(limit);
        if needed <= limit.bytes {
            return Ok(());
        }
        let mut counted = self.clone();
        if !limit.is_address_space {
            counted.needs.retain(|need| need.taken_bytes > 0);
            for need in &mut counted.needs {
                need.bytes = need.taken_bytes;
            }
        }
        let largest = counted.needs.iter().max_by_key(|need| need.bytes);
        let (place, help) = largest.map_or(("", ""), |need| (&need.place, need.help));
        let mapped = match limit.is_address_space && self.mapped_bytes > 0 {
            true => format!(", mapped files {}", human_bytes(self.mapped_bytes)),
            false => String::new(),
        };
        Err(Error::with_source(
            ErrorKind::NoSpace,
            "",
            format!(
                "{place}: the daemon needs {} of memory, and may have {} ({})\n    \
                 help: {help}, or raise that limit; needed are {counted}{mapped}",
                human_bytes(needed),
                human_bytes(limit.bytes),
                limit.who,
            ),
        ))
    }

    /// Returns the total and a line for each need, with the requests of all possible connections.
    pub(crate) fn lines(&self) -> String {
        self.lines_within(&memory_limits())
    }

    fn lines_within(&self, limits: &[MemoryLimit]) -> String {
        let all = self.when_full(limits);
        let total = human_bytes(all.total());
        let mut lines = format!("memory under full load: {total}\n");
        for need in all.largest_first() {
            lines.push_str(&format!("  {}: {}\n", need.what, human_bytes(need.bytes)));
        }
        lines
    }

    /// Returns a warning, with the remedy, if all connections together may need more memory than
    /// the machine or a control group has.
    pub(crate) fn warning(&self) -> Option<String> {
        self.warning_within(&memory_limits())
    }

    fn warning_within(&self, limits: &[MemoryLimit]) -> Option<String> {
        let all = self.when_full(limits);
        let soft = limits.iter().filter(|limit| !limit.is_address_space);
        let least = soft.min_by_key(|limit| limit.bytes)?;
        let largest = all.needs.iter().max_by_key(|need| need.bytes)?;
        (all.total() > least.bytes).then(|| {
            format!(
                "{}: under full load, the daemon needs {} of memory, and the limit is {} ({})\n    \
                 help: the kernel would then kill it: {}",
                largest.place,
                human_bytes(all.total()),
                human_bytes(least.bytes),
                least.who,
                largest.help
            )
        })
    }

    fn largest_first(&self) -> Vec<&Need> {
        let mut needs: Vec<_> = self.needs.iter().collect();
        needs.sort_by_key(|need| std::cmp::Reverse(need.bytes));
        needs
    }

    /// Returns the needs with the requests of all possible connections.
    fn when_full(&self, limits: &[MemoryLimit]) -> Self {
        let mut all = self.clone();
        let (connections, _) = self.connections_within(limits);
        let requests = (all.needs.iter_mut()).find(|need| need.what.contains("of a connection"));
        if let Some(requests) = requests {
            requests.what = match connections {
                1 => "requests of a connection".into(),
                _ => format!("requests of at most {connections} connections"),
            };
            requests.bytes = self.connection_bytes.saturating_mul(connections);
            requests.help = "limit its address space (`ulimit -v`, LimitAS=), so that it accepts \
                fewer connections";
        }
        all
    }
}

/// Returns the exports whose memory for requests does not depend on connections. Each has a
/// description, that memory, and the part that is reserved at the start, bytes.
fn requests(config: &Config) -> Vec<(&Export, String, [u64; 2])> {
    let is_local = |export: &&Export| export.protocol.is_local();
    let is_machine = |export: &&Export| matches!(export.protocol, Protocol::VhostUserBlk(_));
    let count = |of: &dyn Fn(&&Export) -> bool| config.exports.iter().filter(of).count() as u64;
    let first = |of: &dyn Fn(&&Export) -> bool| config.exports.iter().find(of);
    let mut requests = Vec::new();
    if let Some(export) = first(&is_local) {
        let is_mount = |export: &&Export| matches!(export.protocol, Protocol::Fuse(_));
        let mounts = count(&is_mount) * fuse::MOUNT_BYTES;
        let bytes = RESERVE_BYTES + (count(&is_local) - 1) * LOCAL_BYTES + mounts;
        let what = "requests of block devices and FUSE".into();
        requests.push((export, what, [bytes, RESERVE_BYTES]));
    }
    if let Some(export) = first(&is_machine) {
        let bytes = count(&is_machine).saturating_mul(vhost_user::DISK_BYTES);
        requests.push((export, "requests of virtual machines".into(), [bytes, 0]));
    }
    requests
}

/// Returns the most memory of a connection to an export, bytes; zero if it has no connections.
const fn connection_of(export: &Export) -> u64 {
    match export.protocol {
        Protocol::Nbd(_) => nbd::CONNECTION_BYTES,
        Protocol::NvmeTcp(_) => nvme_tcp::CONNECTION_BYTES,
        Protocol::VhostUserBlk(_) | Protocol::Ublk(_) | Protocol::Fuse(_) => 0,
    }
}

fn connection_bytes(config: &Config) -> u64 {
    let exports = config.exports.iter().map(connection_of);
    exports.max().unwrap_or(0)
}

/// Returns the number of addresses with connections that count.
fn listeners(config: &Config) -> u64 {
    let exports = config.exports.iter().filter(|it| connection_of(it) > 0);
    let listening = exports.filter_map(|export| export.protocol.listen());
    let addresses: BTreeSet<_> = listening.map(|listen| listen.to_string()).collect();
    addresses.len() as u64
}

/// Returns the total size of files that are mapped as media, bytes.
fn mapped_bytes(config: &Config) -> u64 {
    let path = |kind: &DeviceKind| match kind {
        DeviceKind::Pmem { path } => std::fs::metadata(path).ok(),
        _ => None,
    };
    let files = config
        .devices
        .iter()
        .filter_map(|device| path(&device.kind));
    files.fold(0, |sum, file| sum.saturating_add(file.len()))
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs = self.largest_first().into_iter();
        let words = needs.map(|need| format!("{} {}", need.what, human_bytes(need.bytes)));
        f.write_str(&words.collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests;
