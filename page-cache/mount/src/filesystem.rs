//! Requests of the kernel, each executed on the thread that has read it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_block::Error;
use forebay_cluster::names::{Attributes, Changes};
use fuser::{
    CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::Users;
use crate::attributes::{answer_room, described, instant};
use crate::directories::renaming;
use crate::errors::{errno_of, errno_of_io};
use crate::handles::Handles;
use crate::locking::{Locking, wanted};
use crate::negotiation::negotiate;
use crate::workers::Workers;
use crate::{data, directories, nodes, xattr};

/// Time for which the kernel may cache names and attributes: none, since other nodes change them.
pub(crate) const TTL: Duration = Duration::ZERO;
/// A mounted tree.
pub(crate) struct SharedFilesystem {
    pub(crate) handles: Arc<Handles>,
    locking: Arc<Locking>,
    workers: Arc<Workers>,
    pub(crate) users: Users,
}

impl SharedFilesystem {
    pub(crate) const fn new(
        handles: Arc<Handles>,
        locking: Arc<Locking>,
        workers: Arc<Workers>,
        users: Users,
    ) -> Self {
        Self {
            handles,
            locking,
            workers,
            users,
        }
    }

    /// Executes a request that may wait for the source.
    fn execute(&self, work: impl FnOnce(&Handles) + Send + 'static) {
        match self.workers.enter() {
            Some(_executing) => work(&self.handles),
            None => {
                let handles = Arc::clone(&self.handles);
                self.workers.run(move || work(&handles));
            }
        }
    }

    fn entry(reply: ReplyEntry, found: io::Result<Attributes>) {
        match found {
            Ok(attributes) => reply.entry(&TTL, &described(&attributes), Generation(0)),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }

    fn done(reply: ReplyEmpty, done: io::Result<()>) {
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }
}

impl Filesystem for SharedFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        negotiate(config, self.handles.names()?.any_mapped())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let names = self.handles.names();
        Self::entry(reply, names.and_then(|names| names.look_up(parent.0, name)));
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        if let Ok(names) = self.handles.names() {
            names.forget(number.0, lookups);
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let names = self.handles.names();
        match names.and_then(|names| names.attributes(number.0)) {
            Ok(attributes) => reply.attr(&TTL, &described(&attributes)),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            user,
            group,
            accessed: accessed.map(instant),
            modified: modified.map(instant),
        };
        match self.set(request, number.0, &changes, size, handle) {
            Ok(attributes) => reply.attr(&TTL, &attributes),
            Err(error) => reply.error(errno_of(&error)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        let names = self.handles.names();
        match names.and_then(|names| names.read_link(number.0)) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let file = self.new_file(request, (parent, name), mode);
        let names = self.handles.names();
        let made = names.and_then(|names| nodes::make(&names, &file, mode));
        Self::entry(reply, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let directory = self.new_file(request, (parent, name), mode);
        let names = self.handles.names();
        let made = names.and_then(|names| names.make_directory(&directory));
        Self::entry(reply, made);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let names = self.handles.names();
        Self::done(reply, names.and_then(|names| names.remove(parent.0, name)));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let names = self.handles.names();
        let removed = names.and_then(|names| names.remove_directory(parent.0, name));
        Self::done(reply, removed);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let link = self.new_file(request, (parent, name), 0o777);
        let names = self.handles.names();
        let made = names.and_then(|names| names.make_link(&link, target));
        Self::entry(reply, made);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let Some(how) = renaming(flags) else {
            return reply.error(Errno::EINVAL);
        };
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        let names = self.handles.names();
        Self::done(reply, names.and_then(|names| names.rename(from, to, how)));
    }

    fn link(&self, _: &Request, number: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let names = self.handles.names();
        let linked = names.and_then(|names| names.link(number.0, parent.0, name));
        Self::entry(reply, linked);
    }

    fn open(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let names = self.handles.names().map_err(Error::from);
        let opened = names.and_then(|names| names.open(number.0));
        self.answer_open(number.0, opened, reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let file = self.new_file(request, (parent, name), mode);
        let created = self.create_file(&file, flags);
        self.answer_create(created, reply);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = data::Read::new(&self.workers, reply);
        self.execute(move |handles| data::read(handles, handle.0, offset, size as usize, read));
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        kind: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let file = (handle.0, flags);
        if kind.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID)
            && let Err(error) = self.clear_set_id(number.0)
        {
            return reply.error(errno_of_io(&error));
        }
        match self.workers.enter() {
            Some(_executing) => data::write(&self.handles, file, offset, data, reply),
            None => {
                let (handles, data) = (Arc::clone(&self.handles), data.to_vec());
                let write = move || data::write(&handles, file, offset, &data, reply);
                self.workers.run(write);
            }
        }
    }

    fn getlk(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        reply: ReplyLock,
    ) {
        let wanted = wanted((number, owner, handle), (start, end), kind);
        match wanted.and_then(|wanted| self.locking.conflicting(&wanted)) {
            Ok(Some((start, end, kind))) => reply.locked(start, end, kind, 0),
            Ok(None) => reply.locked(start, end, libc::F_UNLCK, 0),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        _: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        match wanted((number, owner, handle), (start, end), kind) {
            Ok(wanted) if kind == libc::F_UNLCK => {
                let locking = Arc::clone(&self.locking);
                self.execute(move |_| locking.unlock(&wanted, reply));
            }
            Ok(wanted) if sleep => self.locking.wait(wanted, request.pid(), reply),
            Ok(wanted) => self.locking.set(&wanted, reply),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }

    fn flush(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        let locking = Arc::clone(&self.locking);
        self.execute(move |handles| {
            let written_back = data::write_back(handles, handle.0);
            locking.owner_closed(number.0, owner.0);
            data::answer(written_back, reply);
        });
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.locking.handle_closed(number.0, handle.0);
        self.handles.remove(handle.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        self.execute(move |handles| data::sync(handles, handle.0, reply));
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match directories::open(&self.handles, number) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(errno_of_io(&error)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        directories::list(&self.handles, number, handle.0, offset, reply);
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.remove(handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let names = self.handles.names();
        let synced = names.and_then(|names| names.sync_directory(number.0));
        Self::done(reply, synced);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        answer_room(reply, self.handles.names().and_then(|names| names.room()));
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let names = self.handles.names();
        let set = names.and_then(|names| names.set_xattr(number.0, name, value, flags));
        Self::done(reply, set);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let names = self.handles.names();
        let found = names.and_then(|names| names.xattr(number.0, name));
        xattr::answer(reply, size, found);
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let root = request.uid() == 0;
        let names = self.handles.names();
        let found = names.and_then(|names| names.list_xattrs(number.0, root));
        xattr::answer(reply, size, found);
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let names = self.handles.names();
        let removed = names.and_then(|names| names.remove_xattr(number.0, name));
        Self::done(reply, removed);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let range = offset..offset.saturating_add(length);
        self.execute(move |handles| data::allocate(handles, handle.0, range, mode, reply));
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (from, to) = ((from.0, from_offset), (to.0, to_offset));
        self.execute(move |handles| data::copy(handles, from, to, len, reply));
    }

    /// The kernel itself then answers for this mount that all bytes are data.
    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: i64,
        _: i32,
        reply: fuser::ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: fuser::ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }
}
