//! Attributes, times and free space in the kernel's types.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_cluster::names::Attributes;
use forebay_io::tree::Room;
use fuser::{FileAttr, FileType, INodeNo, ReplyStatfs, TimeOrNow};

use crate::errors::errno_of_io;

/// Returns the attributes of a file or directory for the kernel.
pub(crate) fn described(attributes: &Attributes) -> FileAttr {
    let metadata = &attributes.metadata;
    let time = |seconds: i64, nanoseconds: i64| {
        let part = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0));
        let whole = Duration::from_secs(seconds.unsigned_abs());
        match seconds {
            0.. => UNIX_EPOCH + whole + part,
            _ => UNIX_EPOCH - whole + part,
        }
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    FileAttr {
        ino: INodeNo(attributes.number),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        crtime: UNIX_EPOCH,
        kind: FileType::from_std(metadata.file_type()).unwrap_or(FileType::RegularFile),
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: small(attributes.links),
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: small(metadata.rdev()),
        blksize: small(metadata.blksize()),
        flags: 0,
    }
}

/// Returns the requested time.
pub(crate) fn instant(time: TimeOrNow) -> SystemTime {
    match time {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

/// Answers with the free and total space of the source.
pub(crate) fn answer_room(reply: ReplyStatfs, room: io::Result<Room>) {
    match room {
        Ok(room) => reply.statfs(
            room.blocks,
            room.free,
            room.available,
            room.files,
            room.files_free,
            room.block_bytes,
            room.name_bytes,
            room.block_bytes,
        ),
        Err(error) => reply.error(errno_of_io(&error)),
    }
}
