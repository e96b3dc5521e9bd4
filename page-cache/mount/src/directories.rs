//! Entries of open directories, and renames.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use forebay_cluster::names::Renaming;
use fuser::{FileType, INodeNo, RenameFlags, ReplyDirectory};

use crate::errors::errno_of_io;
use crate::handles::{Handle, Handles, Listing};

/// Opens a directory. Returns the number of its handle.
pub(crate) fn open(handles: &Handles, number: INodeNo) -> io::Result<u64> {
    let entries = handles.names()?.list(number.0)?;
    handles.add(Handle::Directory(Arc::new(Listing::new(entries))))
}

/// Lists entries of an open directory, from the one after `offset` on. A program that reads from
/// the start once more (rewinddir(3)) gets the present entries.
pub(crate) fn list(
    handles: &Handles,
    number: INodeNo,
    handle: u64,
    offset: u64,
    mut reply: ReplyDirectory,
) {
    let listing = handles.directory(handle);
    let list = || handles.names()?.list(number.0);
    let entries = match listing.and_then(|listing| listing.entries(offset, list)) {
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
