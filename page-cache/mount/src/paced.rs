//! A file system whose surplus threads park.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, FileHandle, Filesystem, INodeNo, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, PollEvents, PollFlags, PollNotifier, RenameFlags,
    ReplyAttr, ReplyBmap, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyPoll, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::handles::Handles;
use crate::readers::{Kind, Readers};

/// The file system `F`. Each of its requests counts as served by the thread that has read it.
///
/// Reads leave their packets to the next request, if there is one already. So one packet asks the
/// directory for the pages of many reads.
pub(crate) struct Paced<F> {
    filesystem: F,
    readers: Arc<Readers>,
    handles: Arc<Handles>,
    /// Whether packets of reads are left to the next request.
    held: AtomicBool,
    /// Whether the last read has to wait for its page.
    waits: AtomicBool,
}

impl<F> Paced<F> {
    pub(crate) const fn new(filesystem: F, readers: Arc<Readers>, handles: Arc<Handles>) -> Self {
        Self {
            filesystem,
            readers,
            handles,
            held: AtomicBool::new(false),
            waits: AtomicBool::new(false),
        }
    }

    /// Sends the packets that earlier reads have left.
    fn send_held(&self) {
        if self.held.load(Ordering::Acquire)
            && self.held.swap(false, Ordering::AcqRel)
            && let Ok(names) = self.handles.names()
        {
            names.send_packets();
        }
    }
}

/// Defines methods that serve a request by the method of the same name.
macro_rules! serve {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?);)*) => {
        $(fn $name(&self, $($argument: $kind),*) {
            let _serving = self.readers.serve(Kind::MayWait);
            // It may wait.
            self.send_held();
            self.filesystem.$name($($argument),*);
        })*
    };
}

impl<F: Filesystem> Filesystem for Paced<F> {
    fn init(&mut self, request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.filesystem.init(request, config)
    }

    fn destroy(&mut self) {
        self.filesystem.destroy();
    }

    fn read(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = || {
            self.filesystem
                .read(request, number, handle, offset, size, flags, owner, reply);
        };
        let names = match self.handles.names() {
            Ok(names) if !names.reads_may_wait() => names,
            _ => {
                let _serving = self.readers.serve(Kind::MayWait);
                self.send_held();
                return read();
            }
        };
        // Expected from the last read. Only the number of threads depends on it.
        let kind = match self.waits.load(Ordering::Relaxed) {
            true => Kind::Miss,
            false => Kind::Hit,
        };
        let _serving = self.readers.serve(kind);
        let held = names.hold_packets(read);
        if held.waits != (kind == Kind::Miss) {
            self.waits.store(held.waits, Ordering::Relaxed);
        }
        if held.packets {
            self.held.store(true, Ordering::Release);
        }
        // The packets are in the queue before this look at the kernel's requests.
        if self.held.load(Ordering::Acquire) && !names.has_request() {
            self.send_held();
        }
    }

    serve! {
        fn lookup(request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
        fn forget(request: &Request, ino: INodeNo, nlookup: u64);
        fn getattr(request: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr);
        fn setattr(
            req: &Request,
            ino: INodeNo,
            mode: Option<u32>,
            uid: Option<u32>,
            gid: Option<u32>,
            size: Option<u64>,
            atime: Option<TimeOrNow>,
            mtime: Option<TimeOrNow>,
            ctime: Option<SystemTime>,
            fh: Option<FileHandle>,
            crtime: Option<SystemTime>,
            chgtime: Option<SystemTime>,
            bkuptime: Option<SystemTime>,
            flags: Option<BsdFileFlags>,
            reply: ReplyAttr,
        );
        fn readlink(request: &Request, ino: INodeNo, reply: ReplyData);
        fn mknod(
            req: &Request,
            parent: INodeNo,
            name: &OsStr,
            mode: u32,
            umask: u32,
            rdev: u32,
            reply: ReplyEntry,
        );
        fn mkdir(
            req: &Request,
            parent: INodeNo,
            name: &OsStr,
            mode: u32,
            umask: u32,
            reply: ReplyEntry,
        );
        fn unlink(request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        fn rmdir(request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
        fn symlink(
            req: &Request,
            parent: INodeNo,
            link_name: &OsStr,
            target: &Path,
            reply: ReplyEntry,
        );
        fn rename(
            req: &Request,
            parent: INodeNo,
            name: &OsStr,
            newparent: INodeNo,
            newname: &OsStr,
            flags: RenameFlags,
            reply: ReplyEmpty,
        );
        fn link(
            req: &Request,
            ino: INodeNo,
            newparent: INodeNo,
            newname: &OsStr,
            reply: ReplyEntry,
        );
        fn open(request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        fn write(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            offset: u64,
            data: &[u8],
            write_flags: WriteFlags,
            flags: OpenFlags,
            lock_owner: Option<LockOwner>,
            reply: ReplyWrite,
        );
        fn flush(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            lock_owner: LockOwner,
            reply: ReplyEmpty,
        );
        fn release(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            flags: OpenFlags,
            lock_owner: Option<LockOwner>,
            flush: bool,
            reply: ReplyEmpty,
        );
        fn fsync(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            datasync: bool,
            reply: ReplyEmpty,
        );
        fn opendir(request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen);
        fn readdir(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            offset: u64,
            reply: ReplyDirectory,
        );
        fn readdirplus(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            offset: u64,
            reply: ReplyDirectoryPlus,
        );
        fn releasedir(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            flags: OpenFlags,
            reply: ReplyEmpty,
        );
        fn fsyncdir(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            datasync: bool,
            reply: ReplyEmpty,
        );
        fn statfs(request: &Request, ino: INodeNo, reply: ReplyStatfs);
        fn setxattr(
            req: &Request,
            ino: INodeNo,
            name: &OsStr,
            value: &[u8],
            flags: i32,
            position: u32,
            reply: ReplyEmpty,
        );
        fn getxattr(request: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr);
        fn listxattr(request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr);
        fn removexattr(request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty);
        fn access(request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty);
        fn create(
            req: &Request,
            parent: INodeNo,
            name: &OsStr,
            mode: u32,
            umask: u32,
            flags: i32,
            reply: ReplyCreate,
        );
        fn getlk(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            lock_owner: LockOwner,
            start: u64,
            end: u64,
            typ: i32,
            pid: u32,
            reply: ReplyLock,
        );
        fn setlk(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            lock_owner: LockOwner,
            start: u64,
            end: u64,
            typ: i32,
            pid: u32,
            sleep: bool,
            reply: ReplyEmpty,
        );
        fn bmap(request: &Request, ino: INodeNo, blocksize: u32, idx: u64, reply: ReplyBmap);
        fn ioctl(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            flags: IoctlFlags,
            cmd: u32,
            in_data: &[u8],
            out_size: u32,
            reply: ReplyIoctl,
        );
        fn poll(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            ph: PollNotifier,
            events: PollEvents,
            flags: PollFlags,
            reply: ReplyPoll,
        );
        fn fallocate(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            offset: u64,
            length: u64,
            mode: i32,
            reply: ReplyEmpty,
        );
        fn lseek(
            req: &Request,
            ino: INodeNo,
            fh: FileHandle,
            offset: i64,
            whence: i32,
            reply: ReplyLseek,
        );
        fn copy_file_range(
            req: &Request,
            ino_in: INodeNo,
            fh_in: FileHandle,
            offset_in: u64,
            ino_out: INodeNo,
            fh_out: FileHandle,
            offset_out: u64,
            len: u64,
            flags: CopyFileRangeFlags,
            reply: ReplyWrite,
        );
    }
}
