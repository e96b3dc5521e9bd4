//! The process that holds a `flock` on a file, by `/proc/locks`.

use std::fs::Metadata;
use std::os::linux::fs::MetadataExt;

/// A process that took a `flock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    process: u32,
}

impl Holder {
    /// Returns the process with this number, as a test has it.
    #[cfg(test)]
    pub(crate) fn new(process: u32) -> Self {
        Self { process }
    }

    /// Returns the process that took the lock of this file. `None` if the kernel does not report
    /// it. Either the lock is of another process namespace or another machine, or the file system
    /// has device numbers of its own (btrfs).
    pub(crate) fn of(file: &Metadata) -> Option<Self> {
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        find(&locks, file.st_dev(), file.st_ino())
    }

    /// Returns whether the process has ended. Its lock stays until the kernel has ended its I/O.
    pub(crate) fn is_dead(self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.process));
        // The name in parentheses comes before the state, and may contain anything.
        status.map_or(true, |text| {
            let state = text.rsplit_once(") ").map(|(_, rest)| rest);
            state.is_some_and(|rest| rest.starts_with(['Z', 'X']))
        })
    }

    /// Returns the process with its name, for a message.
    pub(crate) fn describe(self) -> String {
        let name = std::fs::read_to_string(format!("/proc/{}/comm", self.process));
        match name {
            Ok(name) => format!("process {}, {}", self.process, name.trim_end()),
            Err(_) => format!("process {}", self.process),
        }
    }
}

/// Returns the holder in a line such as `1: FLOCK ADVISORY WRITE 4711 08:01:1234 0 EOF`.
fn find(locks: &str, device: u64, inode: u64) -> Option<Holder> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields[..] {
            [_, "FLOCK", _, _, process, found, ..] if found == place => {
                let process = process.parse().ok().filter(|process| *process != 0)?;
                Some(Holder { process })
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_one_file_is_found_among_others() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 08:01:77 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 12 08:02:77 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 13 08:01:77 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 08:01:77 0 EOF\n\
                     4: FLOCK  ADVISORY  WRITE 0 08:01:78 0 EOF\n\
                     5: FLOCK  ADVISORY  WRITE -1 08:01:79 0 EOF\n";
        let found = |inode| find(locks, libc::makedev(8, 1), inode);
        assert_eq!(found(77), Some(Holder { process: 14 }));
        assert_eq!(found(78), None, "another namespace");
        assert_eq!(found(79), None, "no process");
        assert_eq!(found(7), None);
    }

    #[test]
    fn a_process_that_ended_is_dead_before_and_after_it_is_waited_for() {
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        let holder = Holder {
            process: child.id(),
        };
        while !holder.is_dead() {
            std::thread::yield_now();
        }
        child.wait().expect("it ended");
        assert!(holder.is_dead());
        let this = Holder {
            process: std::process::id(),
        };
        assert!(!this.is_dead());
        assert!(this.describe().contains(&std::process::id().to_string()));
    }
}
