//! Requests of the kernel, each executed on the thread that has read it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_block::Error;
use forebay_cluster::names::{Attributes, Changes, Renaming};
use fuser::{
    Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use crate::Users;
use crate::attributes::{described, instant};
use crate::data;
use crate::errors::{number_of, number_of_ours};
use crate::handles::{Handle, Handles};
use crate::locking::{Locking, wanted};
use crate::workers::Workers;

/// The kernel must not cache: another node may change the file.
const LIVE: Duration = Duration::ZERO;
/// Maximum read or write, bytes. An append up to this length is atomic.
const REQUEST_BYTES: u32 = 1 << 20;
/// Maximum number of asynchronous requests that the kernel has in flight.
const BACKGROUND: u16 = 1024;
/// Files bypass the kernel's cache. The kernel reports each close, which ends locks.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

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

    fn read_link(&self, number: u64) -> io::Result<OsString> {
        self.handles.names()?.read_link(number)
    }

    fn entry(reply: ReplyEntry, found: io::Result<Attributes>) {
        match found {
            Ok(attributes) => reply.entry(&LIVE, &described(&attributes), Generation(0)),
            Err(error) => reply.error(number_of(&error)),
        }
    }

    fn done(reply: ReplyEmpty, done: io::Result<()>) {
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(number_of(&error)),
        }
    }
}

impl Filesystem for SharedFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |nearest: u32| io::Error::other(format!("FUSE supports {nearest} at most"));
        config.set_max_write(REQUEST_BYTES).map_err(refused)?;
        // Reads that wait for the source count. Few of them must not stop all others.
        let few = |nearest: u16| refused(nearest.into());
        config.set_max_background(BACKGROUND).map_err(few)?;
        config.set_congestion_threshold(BACKGROUND).map_err(few)?;
        // Without these capabilities, locks would be local to this node.
        let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        let unknown = |_| io::Error::other("no FUSE locks in this kernel\n    help: use another");
        config.add_capabilities(locks).map_err(unknown)?;
        if config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok() {
            config.set_max_stack_depth(1).map_err(refused)?;
        } else if self.handles.names()?.any_mapped() {
            return Err(io::Error::other(
                "this kernel has no FUSE passthrough, without which no directory is mapped\n    \
                 help: use Linux 6.9 or later, or run the directory process without --map",
            ));
        }
        // Without these capabilities, the kernel sends requests one by one, but correctly.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
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
            Ok(attributes) => reply.attr(&LIVE, &described(&attributes)),
            Err(error) => reply.error(number_of(&error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
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
        match self.set(number.0, &changes, size, handle) {
            Ok(attributes) => reply.attr(&LIVE, &attributes),
            Err(error) => reply.error(number_of_ours(&error)),
        }
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.read_link(number.0) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(number_of(&error)),
        }
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
        let how = match flags {
            RenameFlags::RENAME_NOREPLACE => Renaming::Refuse,
            RenameFlags::RENAME_EXCHANGE => Renaming::Exchange,
            _ if flags.is_empty() => Renaming::Replace,
            _ => return reply.error(Errno::EINVAL),
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
        match opened.and_then(|opened| self.handle(number.0, opened)) {
            Ok((handle, None)) => reply.opened(handle, OPENED),
            Ok((handle, Some(backing))) => {
                // SAFETY: the backing file belongs to this mount, which holds it until after the
                // answer.
                let id = unsafe { reply.wrap_backing(backing.number()) };
                reply.opened_passthrough(handle, FopenFlags::empty(), &id);
                // This process closes it.
                id.into_raw();
            }
            Err(error) => reply.error(number_of_ours(&error)),
        }
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
        let handle = created.and_then(|(attributes, opened)| {
            Ok((attributes, self.handle(attributes.ino.0, opened)?))
        });
        let new = Generation(0);
        match handle {
            Ok((attributes, (handle, None))) => {
                reply.created(&LIVE, &attributes, new, handle, OPENED);
            }
            Ok((attributes, (handle, Some(backing)))) => {
                let flags = FopenFlags::empty();
                // SAFETY: the backing file belongs to this mount, which holds it until after the
                // answer.
                let id = unsafe { reply.wrap_backing(backing.number()) };
                reply.created_passthrough(&LIVE, &attributes, new, handle, flags, &id);
                // This process closes it.
                id.into_raw();
            }
            Err(error) => reply.error(number_of_ours(&error)),
        }
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
        let (handle, size) = (handle.0, size as usize);
        self.execute(move |handles| data::read(handles, handle, offset, size, reply));
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
            return reply.error(number_of(&error));
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
            Err(error) => reply.error(number_of(&error)),
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
            Ok(wanted) if sleep => self.locking.wait(wanted, request.pid(), reply),
            Ok(wanted) => self.locking.set(&wanted, reply),
            Err(error) => reply.error(number_of(&error)),
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
            match written_back {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(number_of_ours(&error)),
            }
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
        let names = self.handles.names();
        let listed = names.and_then(|names| names.list(number.0));
        let opened = listed.and_then(|entries| self.handles.add(Handle::Directory(entries.into())));
        match opened {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(error) => reply.error(number_of(&error)),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.handles.directory(handle.0) {
            Ok(entries) => entries,
            Err(error) => return reply.error(number_of(&error)),
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
        match self.handles.names().and_then(|names| names.room()) {
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
            Err(error) => reply.error(number_of(&error)),
        }
    }
}
