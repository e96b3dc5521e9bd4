//! Loop devices, and the kernel's counters of them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Outcome, run_for_output};

/// A loop device over a file. The kernel removes it with its last user. This value is one of them,
/// so the device ends with it, even if this program is killed.
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
    _open: File,
}

/// Returns whether this program runs as root.
pub(crate) fn is_root() -> bool {
    let mut id = Command::new("id");
    id.arg("-u");
    run_for_output(id).as_deref() == Ok("0")
}

/// Returns the reason why this machine has no loop devices, if any.
pub(crate) fn unavailable() -> Option<String> {
    if !is_root() {
        return Some("loop devices need root".into());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("the kernel has no loop devices (/dev/loop-control)".into());
    }
    None
}

impl Loop {
    /// Attaches `file` with blocks of `block_bytes`, past the page cache.
    pub(crate) fn attach(file: &Path, block_bytes: u32) -> Outcome<Self> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--direct-io=on"]);
        losetup
            .arg(format!("--sector-size={block_bytes}"))
            .arg(file);
        let path = PathBuf::from(run_for_output(losetup)?);
        let open = File::open(&path);
        let mut detach = Command::new("losetup");
        detach.arg("--detach").arg(&path);
        run_for_output(detach)?;
        let open = open.map_err(|error| format!("{}: {error}", path.display()))?;
        let this = Self { path, _open: open };
        for kind in ["logical", "physical"] {
            let file = this.sys(&format!("queue/{kind}_block_size"));
            let size = std::fs::read_to_string(&file).unwrap_or_default();
            if size.trim() != block_bytes.to_string() {
                let path = this.path.display();
                return Err(format!(
                    "{path}: {kind} block {} in place of {block_bytes}",
                    size.trim()
                ));
            }
        }
        Ok(this)
    }

    fn sys(&self, file: &str) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name).join(file)
    }

    /// Sets the number of dirty bytes at which the kernel begins to write back and writers wait,
    /// whatever the size of memory (Documentation/ABI/testing/sysfs-class-bdi; Linux 6.2).
    pub(crate) fn limit_dirty(&self, bytes: u64) -> Outcome<()> {
        let number = std::fs::read_to_string(self.sys("dev"));
        let number = number.map_err(|error| format!("{}: {error}", self.path.display()))?;
        let folder = Path::new("/sys/class/bdi").join(number.trim());
        for (file, value) in [("strict_limit", 1), ("max_bytes", bytes)] {
            let path = folder.join(file);
            let written = std::fs::write(&path, value.to_string());
            written.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// Returns the kernel's counters.
    pub(crate) fn counters(&self) -> Outcome<Counters> {
        let path = self.sys("stat");
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
        Counters::parse(&text).ok_or_else(|| format!("{}: not understood: {text}", path.display()))
    }
}

/// Counters of `/sys/block/*/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) written_bytes: u64,
    pub(crate) flushes: u64,
}

impl Counters {
    /// Documentation/block/stat.rst: field 7 is sectors of 512 bytes written, 16 flush requests.
    fn parse(text: &str) -> Option<Self> {
        let fields: Option<Vec<u64>> = text.split_whitespace().map(|f| f.parse().ok()).collect();
        let fields = fields?;
        Some(Self {
            written_bytes: fields.get(6)? * 512,
            flushes: *fields.get(15)?,
        })
    }

    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            written_bytes: self.written_bytes - before.written_bytes,
            flushes: self.flushes - before.flushes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_the_fields_of_the_kernel() {
        let text = "1 2 3 4 5 6 80 8 9 10 11 12 13 14 15 42 17\n";
        let counters = Counters::parse(text).expect("a line of 17 fields");
        let expected = Counters {
            written_bytes: 80 * 512,
            flushes: 42,
        };
        assert_eq!(counters, expected);
        assert_eq!(Counters::parse("1 2 3"), None);
    }
}
