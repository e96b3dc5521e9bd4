//! The machine: its boot, its entropy, its clock, and settings for a process in the I/O path.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_block::{Context, Error, ErrorKind, Result};

use crate::tree;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// `PR_SET_IO_FLUSHER` of linux/prctl.h.
const PR_SET_IO_FLUSHER: libc::c_int = 57;

/// Returns a random number that is new with every boot of the machine. Shared memory that names
/// another boot is from before a power loss or restart.
///
/// # Errors
/// If the kernel does not report it.
pub fn boot_id() -> Result<[u8; 16]> {
    let text = std::fs::read_to_string(BOOT_ID).context(|| format!("reading {BOOT_ID}"))?;
    let digits: Vec<u8> = text
        .bytes()
        .filter(u8::is_ascii_hexdigit)
        .map(|digit| match digit {
            b'0'..=b'9' => digit - b'0',
            _ => digit.to_ascii_lowercase() - b'a' + 10,
        })
        .collect();
    let mut id = [0; 16];
    if digits.len() != 2 * id.len() {
        return Err(Error::new(
            ErrorKind::Corrupt,
            format!("{BOOT_ID} has {text:?}, which is not a UUID"),
        ));
    }
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Ok(id)
}

/// Fills `buf` with random bytes from the kernel.
///
/// # Panics
/// If the kernel has none, which it only refuses to callers that pass a wrong address.
pub fn random(buf: &mut [u8]) {
    let mut filled = 0;
    while filled < buf.len() {
        let rest = &mut buf[filled..];
        // SAFETY: the call writes at most the length passed.
        let result = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(result) {
            Ok(more) => filled += more,
            Err(_) => {
                let error = io::Error::last_os_error();
                assert!(
                    error.raw_os_error() == Some(libc::EINTR),
                    "getrandom failed: {error}"
                );
            }
        }
    }
}

/// Locks this process's present and future memory against swapping, if that is permitted; otherwise
/// logs that. A process that others' write-back depends on must not wait for a page. To find one,
/// the kernel may wait for dirty pages to be written, by this process.
pub fn lock_memory() {
    let unlimited = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: the limit lives through the call.
    let raised = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const unlimited) } == 0;
    // Under a limit, allocations would fail later, so it is all or nothing. A process with the
    // capability has no limit.
    let may = raised || has_capability(CAP_IPC_LOCK);
    // SAFETY: a plain system call.
    if !may || unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } < 0 {
        tracing::info!(
            "memory is not locked ({}): under memory pressure, requests may wait for memory\n    \
             help: give the process CAP_IPC_LOCK, or LimitMEMLOCK=infinity",
            io::Error::last_os_error()
        );
    }
}

/// Of linux/capability.h.
const CAP_IPC_LOCK: u32 = 14;

/// Returns whether this process has a capability, by proc(5).
fn has_capability(number: u32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> number & 1 == 1)
}

/// Has all threads allocate from one heap, so that [`reserve_memory`] is for all of them. Call it
/// before other threads are started.
pub fn one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call with integer arguments.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Reserves `bytes` of memory for later allocations, so that a request does not wait for the kernel
/// to find a page (see [`lock_memory`]).
pub fn reserve_memory(bytes: usize) {
    #[cfg(target_env = "gnu")]
    // Nothing is given back, and nothing mapped beside the heap.
    // SAFETY: plain calls with integer arguments.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, libc::c_int::MAX);
    }
    // Written, so that it is there.
    drop(std::hint::black_box(vec![1_u8; bytes]));
}

/// Tells the kernel that this thread, and the threads that it starts from now on, serve a block
/// device. Their allocations then never wait for write-back, which could wait for them. Call it
/// before other threads are started.
///
/// # Errors
/// `Permission` without `CAP_SYS_RESOURCE`, or the system's error.
pub fn io_flusher() -> Result<()> {
    // SAFETY: a plain system call with integer arguments.
    if unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) } < 0 {
        return Err(io::Error::last_os_error()).context(|| {
            "not marked as an I/O flusher: memory pressure may stall volumes with file systems \
             mounted on this machine\n\
             help: give the process CAP_SYS_RESOURCE"
        });
    }
    Ok(())
}

/// Returns whether this process's memory is limited by a control group of version 1
/// (cgroup-v1/memory in the kernel's documentation). Returns `true` if the group cannot be read.
///
/// Only there does a thread that looks for memory wait for write-back in flight, unless it is
/// marked as an I/O flusher. A submitter to io_uring starts kernel threads, which need memory.
#[must_use]
pub fn memory_limited_v1() -> bool {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let Some(group) = memory_group_v1(&groups) else {
        return false;
    };
    let stat = Path::new("/sys/fs/cgroup/memory")
        .join(group.trim_start_matches('/'))
        .join("memory.stat");
    std::fs::read_to_string(stat).map_or(true, |stat| is_limited_v1(&stat))
}

/// The path of the memory controller's group in the text of /proc/self/cgroup, if it is of version
/// 1.
fn memory_group_v1(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let mut controllers = fields.next()?.split(',');
        controllers.find(|&name| name == "memory")?;
        fields.next()
    })
}

/// Returns whether the text of memory.stat tells of a limit that is lower than any number of bytes.
fn is_limited_v1(stat: &str) -> bool {
    let limit = stat
        .lines()
        .find_map(|line| line.strip_prefix("hierarchical_memory_limit "));
    let limit = limit.and_then(|bytes| bytes.trim().parse::<u64>().ok());
    // Without a limit the kernel says the largest number of pages that it can count.
    limit.is_none_or(|bytes| bytes < 1 << 60)
}

/// Of linux/capability.h.
const CAP_SYS_ADMIN: u32 = 21;

/// Returns whether this process may mount file systems, as far as its capabilities say.
#[must_use]
pub fn may_mount() -> bool {
    has_capability(CAP_SYS_ADMIN)
}

/// Checks that this process may write to `path`: to a directory means to make files in it.
///
/// # Errors
/// The system's error if it may not.
pub fn check_writable(path: &Path) -> Result<()> {
    let text = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::from)?;
    let mode = match path.is_dir() {
        true => libc::W_OK | libc::X_OK,
        false => libc::W_OK,
    };
    // SAFETY: a string that lives through the call.
    match unsafe { libc::faccessat(libc::AT_FDCWD, text.as_ptr(), mode, libc::AT_EACCESS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}

/// Bytes that a small file is taken to need.
const SMALL_FILE_BYTES: usize = 4096;

/// Checks that a directory takes `files` more files, and room for the content of `contents` of
/// them, each small. A file without a name shows it, so that nothing is left behind, however the
/// process ends.
///
/// # Errors
/// The system's error, such as that the file system is full or read-only.
pub fn check_storable(directory: &Path, files: u64, contents: usize) -> Result<()> {
    let room = tree::room(&File::open(directory)?)?;
    // A file system without a limit has no files.
    let is_full = |needed: u64, all: u64, free: u64| all > 0 && free < needed;
    if is_full(files, room.files, room.files_free) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC).into());
    }
    let unnamed = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .mode(0o600)
        .open(directory);
    let bytes = contents * SMALL_FILE_BYTES;
    match unnamed {
        Ok(mut file) => {
            // A limit of file sizes holds for each file, so the probe is as long as one alone.
            file.write_all(&vec![0; bytes.min(SMALL_FILE_BYTES)])?;
            // Some file systems find out late that they are full.
            file.sync_all()?;
            let blocks = (bytes as u64).div_ceil(u64::from(room.block_bytes.max(1)));
            match is_full(blocks, room.blocks, room.free) {
                true => Err(io::Error::from_raw_os_error(libc::ENOSPC).into()),
                false => Ok(()),
            }
        }
        // Not every file system has files without a name.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR)) => {
            let blocks = (bytes as u64).div_ceil(u64::from(room.block_bytes.max(1)));
            match is_full(blocks, room.blocks, room.free) {
                true => Err(io::Error::from_raw_os_error(libc::ENOSPC).into()),
                false => Ok(()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Has a write beyond the limit of file sizes (`RLIMIT_FSIZE`) fail with an error. Without this
/// call a signal ends the process.
pub fn ignore_file_size_signal() {
    // SAFETY: no handler runs.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Time since 1970, by the machine's clock. It may jump; for intervals use [`crate::rt::now`].
#[must_use]
pub fn wall_clock() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_has_one_name() {
        let id = boot_id().expect("Linux has one");
        assert_ne!(id, [0; 16]);
        assert_eq!(id, boot_id().expect("again"));
    }

    #[test]
    fn random_bytes_differ() {
        let mut first = [0; 300];
        let mut second = [0; 300];
        random(&mut first);
        random(&mut second);
        assert_ne!(first, second);
        assert!(first[284..] != [0; 16], "filled to the end");
    }

    #[test]
    fn the_group_of_the_memory_controller_is_found() {
        let first = "9:name=systemd:/x\n4:cpu,memory:/a:b/c\n0::/\n";
        assert_eq!(memory_group_v1(first), Some("/a:b/c"));
        assert_eq!(
            memory_group_v1("0::/user.slice/memory\n"),
            None,
            "version 2"
        );
        assert_eq!(memory_group_v1(""), None);
    }

    #[test]
    fn a_limit_is_less_than_any_number_of_bytes() {
        let stat =
            |bytes: &str| format!("cache 0\nhierarchical_memory_limit {bytes}\ntotal_cache 0\n");
        assert!(is_limited_v1(&stat("536870912")));
        assert!(!is_limited_v1(&stat("9223372036854771712")));
        assert!(is_limited_v1("cache 0\n"), "not known");
    }

    #[test]
    fn the_clock_is_past_2020() {
        assert!(wall_clock() > Duration::from_secs(1_577_836_800));
    }
}
