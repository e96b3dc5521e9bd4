//! Entries of open directories, and renames.

use std::ffi::OsStr;

use forebay_cluster::names::Renaming;
use fuser::{FileType, INodeNo, RenameFlags, ReplyDirectory};

use crate::errors::errno_of_io;
use crate::handles::Handles;

/// Lists entries of an open directory, from the one after `offset` on.
pub(crate) fn list(
    handles: &Handles,
    number: INodeNo,
    handle: u64,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let entries = match handles.directory(handle) {
        Ok(entries) => entries,
        Err(error) => return reply.error(errno_of_io(&error)),
    };
    let dots = [".", ".."].map(|name| (number, FileType::Directory, OsStr::new(name)));
    let all = dots.into_iter().chain(entries.iter().map(|entry| {
        let kind = FileType::from_std(entry.kind).unwrap_or(FileType::RegularFile);
        (INodeNo(entry.number), kind, entry.name.as_os_str())
    }));
    for ((number, kind, name), next) in all.zip(1..) {
        if next > offset && reply.add(number, next, kind, name) {
            break;
        }
    }
    reply.ok();
}

/// Returns the kind of a rename (renameat2(2)), or `None` for unknown flags.
pub(crate) fn renaming(flags: RenameFlags) -> Option<Renaming> {
    match flags {
        RenameFlags::RENAME_NOREPLACE => Some(Renaming::Refuse),
        RenameFlags::RENAME_EXCHANGE => Some(Renaming::Exchange),
        _ => flags.is_empty().then_some(Renaming::Replace),
    }
}
