//! Checks paths that the daemon creates: no two are equal, and none is under a file.

use std::path::{Component, Path, PathBuf};

use super::problem::Problems;
use super::{Config, Listen, Protocol};

/// A path that the daemon creates.
struct Made {
    /// Its key in the configuration, and its volume.
    what: String,
    path: PathBuf,
    /// Path without links, as far as it exists.
    resolved: PathBuf,
    line: Option<usize>,
    is_directory: bool,
    /// Whether exports of several volumes share it.
    is_shared: bool,
}

impl Made {
    fn new(what: String, path: &Path, line: impl Into<Option<usize>>) -> Self {
        Self {
            what,
            path: path.to_path_buf(),
            resolved: resolved(path),
            line: line.into(),
            is_directory: false,
            is_shared: false,
        }
    }

    fn directory(self) -> Self {
        Self {
            is_directory: true,
            ..self
        }
    }

    /// Returns the reason why both paths cannot be created.
    fn conflict(&self, other: &Self) -> Option<String> {
        if self.resolved == other.resolved {
            let shared = self.is_shared && other.is_shared;
            let what = || {
                format!(
                    "{} and {} are both {}",
                    other.what,
                    self.what,
                    self.path.display()
                )
            };
            return (!shared).then(what);
        }
        let (file, under) = match (
            other.resolved.starts_with(&self.resolved),
            self.resolved.starts_with(&other.resolved),
        ) {
            (true, _) => (self, other),
            (_, true) => (other, self),
            _ => return None,
        };
        (!file.is_directory).then(|| {
            format!(
                "{} {} lies under {} {}, which is no directory",
                under.what,
                under.path.display(),
                file.what,
                file.path.display()
            )
        })
    }
}

impl Config {
    /// Checks the paths that the daemon creates: control socket, state directory, process journal
    /// (if the cache is used), sockets and mount points.
    pub(super) fn check_distinct(&self, cached: bool, problems: &mut Problems<'_>) {
        let made = self.made(cached);
        for (number, one) in made.iter().enumerate() {
            let conflict = made[..number].iter().find_map(|other| one.conflict(other));
            if let Some(what) = conflict {
                problems.add_at(one.line, what, "give each of them a path of its own");
            }
        }
    }

    fn made(&self, cached: bool) -> Vec<Made> {
        let server = &self.server;
        let mut made = vec![
            Made::new("`control`".into(), &server.control, server.control_line),
            Made::new("`state`".into(), &server.state, server.state_line).directory(),
        ];
        let cache = self.cache.as_ref().filter(|_| cached);
        if let Some((path, line)) = cache.and_then(|cache| cache.journal.as_ref()) {
            made.push(Made::new("`journal`".into(), path, *line));
        }
        for export in &self.exports {
            let what = |key: &str| format!("`{key}` of volume {:?}", export.volume);
            made.extend(match &export.protocol {
                Protocol::Nbd(nbd) => match &nbd.listen {
                    Listen::Unix(path) => Some(Made {
                        is_shared: true,
                        ..Made::new(what("nbd"), path, export.line)
                    }),
                    Listen::Tcp(_) => None,
                },
                Protocol::VhostUserBlk(path) => {
                    Some(Made::new(what("vhost-user-blk"), path, export.line))
                }
                Protocol::Fuse(path) => {
                    Some(Made::new(what("fuse"), path, export.line).directory())
                }
                Protocol::NvmeTcp(_) | Protocol::Ublk(_) => None,
            });
        }
        made
    }
}

/// Returns the path without links and `..`, as far as it exists. In the rest, `..` removes the
/// preceding name.
fn resolved(path: &Path) -> PathBuf {
    let mut ancestors = path.ancestors();
    let Some((there, rest)) = ancestors.find_map(|above| {
        let there = above.canonicalize().ok()?;
        Some((there, path.strip_prefix(above).ok()?))
    }) else {
        return path.to_path_buf();
    };
    let mut resolved = there;
    for part in rest.components() {
        match part {
            Component::ParentDir => _ = resolved.pop(),
            Component::Normal(name) => resolved.push(name),
            _ => {}
        }
    }
    resolved
}
