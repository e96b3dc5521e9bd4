//! Last pool of a tree: `.forebay/pool` in the source.
//!
//! A pool whose pages outlive its nodes may hold unwritten data of the source while none of its
//! processes runs. If another pool used the source meanwhile, the first one's directory would
//! overwrite newer data after its next start. So the source names its last pool. A new pool is
//! refused while the last one holds unwritten data. A pool is also refused if it holds such data
//! from before another pool's use.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_io::NewDirectories;

use super::Identity;
use crate::pool::{Nodes, Pool};
use crate::second_names;

const FIRST_LINE: &str = "forebay pagecache source 1";

/// A pool in the source's record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    /// Boot identifier of the machine: memory of an earlier boot is lost.
    boot: String,
    device: u64,
    inode: u64,
    /// Whether the pool's pages outlive its nodes.
    outlives: bool,
    path: PathBuf,
}

/// A new record for a source.
#[derive(Debug)]
pub(crate) struct New {
    path: PathBuf,
    text: String,
    /// Whether the source has this record already.
    is_saved: bool,
}

impl New {
    /// Returns the path of the record.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the record, once the pool's directory is the only one. Does nothing if the source has
    /// it: a directory that starts again must not wait for a source that does not answer.
    pub(crate) fn save(&self) -> Result<()> {
        if self.is_saved {
            return Ok(());
        }
        let new = self.path.with_extension("new");
        let saved = fs::write(&new, &self.text).and_then(|()| fs::rename(&new, &self.path));
        saved.context(|| format!("writing {}", self.path.display()))
    }
}

/// Checks whether this pool may use the source, which its directory process has claimed
/// ([`super::Claim`]). Returns the new record of the source and its directory, or `None` if nothing
/// can be created in the source. `before` is the pool's own record, and `outlives` says whether its
/// pages outlive its nodes.
///
/// # Errors
/// `Busy` if the source's last pool holds unwritten data, or if this pool does and the source has
/// had another pool since. Also errors of the system.
pub(crate) fn check(
    source: &Path,
    pool: &Pool,
    boot: &str,
    before: &Nodes,
    outlives: bool,
) -> Result<Option<(New, NewDirectories)>> {
    let Ok(made) = second_names::make_top(source) else {
        // A later attempt to create files there reports the error.
        return Ok(None);
    };
    let path = source.join(second_names::NAME).join("pool");
    let identity = Identity::of(pool.path())?;
    let ours = Record {
        boot: boot.to_owned(),
        device: identity.device,
        inode: identity.inode,
        outlives,
        path: fs::canonicalize(pool.path())?,
    };
    let last = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        text => {
            let text = text.context(|| format!("reading {}", path.display()))?;
            Some(parse(&text).ok_or_else(|| {
                let context = format!(
                    "{}: it names no pool\nhelp: remove it if no pool holds unwritten data of {}",
                    path.display(),
                    source.display()
                );
                Error::new(ErrorKind::Corrupt, context)
            })?)
        }
    };
    // This pool's own pages may be those of dead nodes, which nothing would write back.
    let is_ours =
        |last: &Record| last.boot == boot && (last.device, last.inode) == (ours.device, ours.inode);
    let had_outlived = last
        .as_ref()
        .is_some_and(|last| is_ours(last) && last.outlives);
    if had_outlived
        && !outlives
        && let Some(page) = pool.unsaved(before.pages)?
    {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "pool {}: it holds unwritten page {} of {}, written with --placement pool\n\
                 help: start with --placement pool, until everything is written back",
                pool.path().display(),
                page.index,
                second_names::unnamed(page.inode, source)
            ),
        ));
    }
    let another = |last: &&Record| {
        last.boot == boot && (last.device, last.inode) != (ours.device, ours.inode)
    };
    if let Some(last) = last.as_ref().filter(another) {
        check_last(source, last)?;
        if outlives && let Some(page) = pool.unsaved(before.pages)? {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "pool {}: its unwritten page {} of {} is older than the use of the pool {}, \
                     and would overwrite newer data\n\
                     help: remove this pool and its data",
                    pool.path().display(),
                    page.index,
                    second_names::unnamed(page.inode, source),
                    last.path.display()
                ),
            ));
        }
    }
    let new = New {
        path,
        text: render(&ours),
        is_saved: last.as_ref() == Some(&ours),
    };
    Ok(Some((new, made)))
}

/// Fails if the source's last pool holds unwritten data of it.
fn check_last(source: &Path, last: &Record) -> Result<()> {
    let there = Identity::of(&last.path);
    let same = |there: &Identity| (there.device, there.inode) == (last.device, last.inode);
    if !last.outlives || !there.is_ok_and(|there| same(&there)) {
        return Ok(());
    }
    let pool = Pool::new(&last.path)?;
    let Some(nodes) = pool.load()? else {
        return Ok(());
    };
    let place = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let of_source =
        place(Path::new(&nodes.source)).is_ok_and(|at| place(source).is_ok_and(|this| this == at));
    if of_source && let Some(page) = pool.unsaved(nodes.pages)? {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "source {}: the pool {} holds unwritten page {} of {}\n\
                 help: start a directory with that pool, its capacity ({} pages) and --placement \
                 pool, until everything is written back, or remove that pool and its data",
                source.display(),
                last.path.display(),
                page.index,
                second_names::unnamed(page.inode, source),
                nodes.pages
            ),
        ));
    }
    Ok(())
}

fn render(record: &Record) -> String {
    let Record {
        boot,
        device,
        inode,
        outlives,
        path,
    } = record;
    let outlives = u8::from(*outlives);
    format!(
        "{FIRST_LINE}\n{boot} {device} {inode} {outlives}\n{}\nend\n",
        path.display()
    )
}

fn parse(text: &str) -> Option<Record> {
    let rest = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?;
    let (head, rest) = rest.split_once('\n')?;
    let parts: Vec<&str> = head.split(' ').collect();
    let [boot, device, inode, outlives] = parts[..] else {
        return None;
    };
    Some(Record {
        boot: boot.to_owned(),
        device: device.parse().ok()?,
        inode: inode.parse().ok()?,
        outlives: outlives.parse::<u8>().ok()? != 0,
        path: rest.strip_suffix("\nend\n")?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_a_source_is_read_back_or_refused() {
        let record = Record {
            boot: "ab01".into(),
            device: 7,
            inode: u64::MAX,
            outlives: true,
            path: "/dev/shm/a pool".into(),
        };
        let text = render(&record);
        assert_eq!(parse(&text), Some(record));
        for end in 0..text.len() {
            assert_eq!(parse(&text[..end]), None, "{end} bytes of it");
        }
    }
}
