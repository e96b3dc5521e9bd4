//! Log lines about lost or refused pages: one line a file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use forebay_pagecache::message::PageId;

use crate::pool::Pool;
use crate::second_names::{self, unnamed};

/// Maximum number of page runs that are named of one file.
const RUNS_MAX: usize = 8;
/// Maximum number of files that are named at a time.
const FILES_MAX: usize = 16;
/// Maximum number of open files of other processes that are searched for names.
const OPEN_MAX: usize = 1 << 14;

/// Groups pages by file, as text: number of pages, file and page numbers. The last line has the
/// number of other files.
pub(super) fn by_file(pages: &[PageId], source: &Path, pool: &Pool) -> Vec<String> {
    let mut files: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for page in pages {
        files.entry(page.inode).or_default().push(page.index);
    }
    let named: BTreeSet<u64> = files.keys().take(FILES_MAX).copied().collect();
    let names = names_of(&named, source, pool);
    let mut lines = Vec::new();
    for ((_, indices), name) in files.iter_mut().zip(names) {
        indices.sort_unstable();
        indices.dedup();
        lines.push(match indices[..] {
            [index] => format!("page {index} of {name}"),
            _ => format!("{} pages of {name} ({})", indices.len(), runs(indices)),
        });
    }
    if files.len() > FILES_MAX {
        let others: usize = files.values().skip(FILES_MAX).map(Vec::len).sum();
        lines.push(format!(
            "{others} pages of {} other files",
            files.len() - FILES_MAX
        ));
    }
    lines
}

/// Returns a name for each file, in this order.
pub(super) fn names_of(inodes: &BTreeSet<u64>, source: &Path, pool: &Pool) -> Vec<String> {
    if !source.is_dir() {
        // A device is one file.
        return vec![source.display().to_string(); inodes.len()];
    }
    let names = names(inodes, source, pool);
    let name = |inode: &u64| names.get(inode).cloned();
    let inodes = inodes.iter();
    inodes
        .map(|inode| name(inode).unwrap_or_else(|| unnamed(*inode, source)))
        .collect()
}

/// Formats ascending numbers as runs.
fn runs(numbers: &[u64]) -> String {
    let all: Vec<&[u64]> = numbers.chunk_by(|one, next| one + 1 == *next).collect();
    let named = all.iter().take(RUNS_MAX).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    });
    let mut text = named.collect::<Vec<_>>().join(", ");
    if all.len() > RUNS_MAX {
        text.push_str(&format!(" and {} more runs", all.len() - RUNS_MAX));
    }
    text
}

/// Returns the names under which nodes have files of the source open. It does not ask the source
/// itself, which may not answer.
fn names(inodes: &BTreeSet<u64>, source: &Path, pool: &Pool) -> BTreeMap<u64, String> {
    let mut names = BTreeMap::new();
    let nodes = pool.load().ok().flatten().unwrap_or_default();
    let processes: BTreeSet<u32> = nodes.known.iter().map(|known| known.pid).collect();
    let open = processes.iter().flat_map(|process| {
        let infos = fs::read_dir(format!("/proc/{process}/fdinfo")).ok();
        let infos = infos.into_iter().flatten().flatten();
        infos.map(move |info| (*process, info))
    });
    for (process, info) in open.take(OPEN_MAX) {
        if names.len() == inodes.len() {
            break;
        }
        let text = fs::read_to_string(info.path()).unwrap_or_default();
        let inode = text.lines().find_map(|line| line.strip_prefix("ino:"));
        let inode = inode.and_then(|inode| inode.trim().parse().ok());
        let Some(inode) = inode.filter(|inode| inodes.contains(inode)) else {
            continue;
        };
        let number = info.file_name();
        let path = fs::read_link(Path::new(&format!("/proc/{process}/fd")).join(number));
        let known = |path: &Path| {
            let below = path.strip_prefix(source);
            below.is_ok_and(|below| !below.starts_with(second_names::NAME))
        };
        if let Some(path) = path.ok().filter(|path| known(path)) {
            names.insert(inode, path.display().to_string());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Nodes;

    #[test]
    fn thousands_of_pages_are_a_line_a_file_with_an_end() {
        let top = std::env::temp_dir().join(format!("forebay-losses-{}", std::process::id()));
        fs::create_dir_all(&top).expect("made");
        let pool = Pool::new(&top.join("pool")).expect("short");
        pool.make().expect("made").keep();
        pool.save(&Nodes::default()).expect("saved");
        let page = |inode, index| PageId { inode, index };
        let pages: Vec<PageId> = (0..5000).rev().map(|index| page(1, index)).collect();
        let line = format!("5000 pages of {} (0 to 4999)", unnamed(1, &top));
        assert_eq!(by_file(&pages, &top, &pool), [line]);
        let odd: Vec<PageId> = (0..5000).map(|index| page(1, 2 * index + 1)).collect();
        let [line] = &by_file(&odd, &top, &pool)[..] else {
            panic!("one file is one line");
        };
        assert!(
            line.ends_with("(1, 3, 5, 7, 9, 11, 13, 15 and 4992 more runs)"),
            "{line}"
        );
        let single = by_file(&[page(3, 7), page(3, 7)], &top, &pool);
        assert_eq!(single, [format!("page 7 of {}", unnamed(3, &top))]);
        let many: Vec<PageId> = (0..5000).map(|inode| page(inode, 0)).collect();
        let lines = by_file(&many, &top, &pool);
        assert_eq!(lines.len(), FILES_MAX + 1);
        assert_eq!(lines[FILES_MAX], "4984 pages of 4984 other files");
        fs::remove_dir_all(&top).expect("removed");
    }
}
