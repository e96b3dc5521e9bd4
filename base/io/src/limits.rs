//! Limits of this process: descriptors and memory.

use std::path::Path;
use std::sync::OnceLock;

use forebay_block::{Context as _, Result};

/// Raises the soft limit of open descriptors to the hard one. Returns the limit.
///
/// # Errors
/// The system's error.
pub fn raise_descriptor_limit() -> Result<u64> {
    let mut limit = get(libc::RLIMIT_NOFILE).context(|| "limit of descriptors")?;
    if limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the structure lives through the call, which reads it.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(error).context(|| "raising the limit of descriptors");
        }
    }
    Ok(limit.rlim_cur)
}

/// Number of descriptors that this process has open; zero if the system does not tell.
#[must_use]
pub fn open_descriptors() -> u64 {
    // The directory itself is one of them while it is read.
    std::fs::read_dir("/proc/self/fd")
        .map_or(0, |entries| (entries.count() as u64).saturating_sub(1))
}

/// Returns the largest size that a file may get by a write of this process, in bytes; none if there
/// is no limit.
#[must_use]
pub fn file_size_limit() -> Option<u64> {
    let limit = get(libc::RLIMIT_FSIZE).ok()?;
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

fn get(resource: libc::__rlimit_resource_t) -> std::io::Result<libc::rlimit> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the structure lives through the call, which fills it.
    match unsafe { libc::getrlimit(resource, &raw mut limit) } {
        0 => Ok(limit),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Address space for the stacks of threads and the unused parts of the allocator's pieces, in
/// bytes.
const STACKS_BYTES: u64 = 64 << 20;

/// A limit on the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The limit, in bytes.
    pub bytes: u64,
    /// Whether mapped files count as well.
    pub is_address_space: bool,
    /// Source of the limit, as a message.
    pub who: String,
}

/// Returns the address space that this process used at the first call, in bytes. Call it before
/// other threads are started: their address space does not reduce later allocations, and counts as
/// `STACKS_BYTES`.
pub fn address_space_at_start() -> u64 {
    static USED: OnceLock<u64> = OnceLock::new();
    *USED.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        kib_of(&status, "VmSize:").unwrap_or(0)
    })
}

/// Returns the limits on the memory of this process: of its control groups, of its address space,
/// and of the machine. Of its address space, [`address_space_at_start`] is used.
#[must_use]
pub fn memory_limits() -> Vec<MemoryLimit> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let mut limits = group_limits(&groups, Path::new("/sys/fs/cgroup"), &read);
    if let Ok(limit) = get(libc::RLIMIT_AS)
        && limit.rlim_cur != libc::RLIM_INFINITY
    {
        limits.push(MemoryLimit {
            bytes: limit
                .rlim_cur
                .saturating_sub(address_space_at_start() + STACKS_BYTES),
            is_address_space: true,
            who: "the limit of address space (ulimit -v)".into(),
        });
    }
    let machine = read(Path::new("/proc/meminfo")).unwrap_or_default();
    if let Some(bytes) = kib_of(&machine, "MemTotal:") {
        limits.push(MemoryLimit {
            bytes,
            is_address_space: false,
            who: "the machine's memory".into(),
        });
    }
    limits
}

/// Bytes of a field that a file of /proc gives in KiB.
fn kib_of(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The limits of the control groups in the text of /proc/self/cgroup, and of those above them. A
/// process may see but a part of the hierarchy: a group that is not there has no limit.
fn group_limits(
    groups: &str,
    root: &Path,
    read: &impl Fn(&Path) -> Option<String>,
) -> Vec<MemoryLimit> {
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        let is_v1 = controllers.split(',').any(|name| name == "memory");
        let (base, file) = match controllers {
            "" => (root.to_path_buf(), "memory.max"),
            _ if is_v1 => (root.join("memory"), "memory.limit_in_bytes"),
            _ => continue,
        };
        let own = Path::new(path.trim_start_matches('/'));
        for group in own.ancestors() {
            let file = base.join(group).join(file);
            // Version 2 says "max" for none; version 1 the largest number of pages.
            let bytes = read(&file).and_then(|text| text.trim().parse::<u64>().ok());
            if let Some(bytes) = bytes.filter(|bytes| *bytes < 1 << 60) {
                let who = format!(
                    "control group {} ({})",
                    Path::new("/").join(group).display(),
                    file.display()
                );
                limits.push(MemoryLimit {
                    bytes,
                    is_address_space: false,
                    who,
                });
            }
        }
    }
    limits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_all_groups_above_counts() {
        let files = |known: &'static [(&str, &str)]| {
            move |path: &Path| {
                let found = known.iter().find(|(name, _)| Path::new(name) == path);
                found.map(|(_, text)| (*text).to_owned())
            }
        };
        let bytes = |groups: &str, known| {
            let limits = group_limits(groups, Path::new("/cg"), &files(known));
            limits.iter().map(|limit| limit.bytes).min()
        };
        let v2 = "0::/a/b\n";
        assert_eq!(bytes(v2, &[]), None);
        assert_eq!(bytes(v2, &[("/cg/a/b/memory.max", "max\n")]), None);
        assert_eq!(bytes(v2, &[("/cg/a/b/memory.max", "4096\n")]), Some(4096));
        let nested = &[
            ("/cg/a/b/memory.max", "8192\n"),
            ("/cg/a/memory.max", "4096\n"),
            ("/cg/memory.max", "max\n"),
        ];
        assert_eq!(bytes(v2, nested), Some(4096));
        let v1 = "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n";
        let none = &[(
            "/cg/memory/a/memory.limit_in_bytes",
            "9223372036854771712\n",
        )];
        assert_eq!(bytes(v1, none), None);
        let some = &[
            ("/cg/memory/a/memory.limit_in_bytes", "65536\n"),
            ("/cg/cpu/x/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(bytes(v1, some), Some(65536));
    }

    #[test]
    fn the_machine_has_a_limit_and_descriptors_are_counted() {
        let limits = memory_limits();
        let is_plausible = |limit: &MemoryLimit| limit.bytes > 0 && limit.bytes < 1 << 60;
        assert!(
            !limits.is_empty() && limits.iter().all(is_plausible),
            "{limits:?}"
        );
        assert_eq!(
            kib_of("A: 1 kB\nMemTotal:   12 kB\n", "MemTotal:"),
            Some(12 << 10)
        );
        let files: Vec<_> = (0..100)
            .map(|_| std::fs::File::open("/dev/null").expect("there"))
            .collect();
        assert!(open_descriptors() >= files.len() as u64 + 3);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let limit = raise_descriptor_limit().expect("raised");
        let after = get(libc::RLIMIT_NOFILE).expect("told");
        assert_eq!((after.rlim_cur, after.rlim_max), (limit, limit));
    }
}
