//! Requests of the kernel: one directory with one file.
//!
//! The FUSE threads answer requests about the file's attributes. Requests on its bytes run on the
//! engine reactor, which also sends the reply.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use forebay_block::{Buf, Error, ErrorKind};
use forebay_io::rt;
use forebay_volume::VolumeHandle;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::file::{ByteFile, Seek};
use super::gate::{Gate, Pass};

const FILE: INodeNo = INodeNo(2);
/// Time for which the kernel caches attributes. It bounds the delay until a grown volume is
/// visible.
const ATTRIBUTES_LIVE: Duration = Duration::from_secs(1);
/// Largest read or write, bytes.
const REQUEST_BYTES: u32 = 1 << 20;
/// Maximum bytes of requests in flight on the engine reactor.
const IN_FLIGHT_BYTES: usize = 32 << 20;
/// Maximum number of the kernel's asynchronous requests in flight.
const IN_FLIGHT_REQUESTS: u16 = 128;

thread_local! {
    /// Files whose engine reactor runs on this thread, by the number of their mount.
    static FILES: RefCell<Vec<(u64, Rc<ByteFile>)>> = const { RefCell::new(Vec::new()) };
}

/// A mounted volume.
pub(super) struct VolumeFilesystem {
    id: u64,
    volume: VolumeHandle,
    gate: Arc<Gate>,
    mounted_at: SystemTime,
    owner: (u32, u32),
}

impl VolumeFilesystem {
    pub(super) fn new(volume: VolumeHandle, owner: (u32, u32)) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            volume,
            gate: Gate::new(IN_FLIGHT_BYTES),
            mounted_at: SystemTime::now(),
            owner,
        }
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let info = self.volume.info();
        let (kind, perm, size, nlink) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0, 2),
            FILE if self.volume.read_only() => (FileType::RegularFile, 0o400, info.size_bytes, 1),
            FILE => (FileType::RegularFile, 0o600, info.size_bytes, 1),
            _ => return None,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: self.mounted_at,
            mtime: self.mounted_at,
            ctime: self.mounted_at,
            crtime: self.mounted_at,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: self.preferred_block_bytes(),
            flags: 0,
        })
    }

    /// Returns the preferred multiple of writes. Loop devices use it as the unit of discard.
    fn preferred_block_bytes(&self) -> u32 {
        self.volume.info().physical_block_bytes.max(4096)
    }

    /// Runs `job` on the engine reactor, after waiting until `bytes` more fit into the limit of
    /// requests in flight. If the reactor drops the job, its reply is an I/O error.
    fn run<F>(&self, bytes: usize, job: impl FnOnce(Rc<ByteFile>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        let (pass, id, volume) = (self.gate.enter(bytes), self.id, self.volume.clone());
        self.volume.engine().call(move || {
            let work = job(file(id, &volume));
            rt::spawn(finish(work, pass));
        });
    }
}

async fn finish(work: impl Future<Output = ()>, pass: Pass) {
    work.await;
    drop(pass);
}

/// Returns the file of a mount, on the engine reactor.
fn file(id: u64, volume: &VolumeHandle) -> Rc<ByteFile> {
    FILES.with_borrow_mut(|files| {
        if let Some((_, file)) = files.iter().find(|(other, _)| *other == id) {
            return Rc::clone(file);
        }
        let file = Rc::new(ByteFile::new(volume.open()));
        files.push((id, Rc::clone(&file)));
        file
    })
}

fn errno(error: &Error) -> Errno {
    Errno::from_i32(error.errno())
}

impl Filesystem for VolumeFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let refused = |nearest| io::Error::other(format!("FUSE supports {nearest} at most"));
        config.set_max_write(REQUEST_BYTES).map_err(refused)?;
        config
            .set_max_background(IN_FLIGHT_REQUESTS)
            .map_err(|nearest| refused(nearest.into()))?;
        // Without this capability the kernel executes the I/O of loop devices one by one, but
        // correctly.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn destroy(&mut self) {
        let id = self.id;
        self.volume.engine().call(move || {
            let gone = FILES.with_borrow_mut(|files| {
                let index = files.iter().position(|(other, _)| *other == id)?;
                Some(files.swap_remove(index))
            });
            drop(gone);
        });
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let known = parent == INodeNo::ROOT && name == self.volume.name();
        match self.attributes(FILE).filter(|_| known) {
            Some(attributes) => reply.entry(&ATTRIBUTES_LIVE, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&ATTRIBUTES_LIVE, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    /// Ignores times, which nothing stores. All other attributes are constant.
    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let Some(attributes) = self.attributes(ino) else {
            return reply.error(Errno::ENOENT);
        };
        let resized = size.is_some_and(|size| size != attributes.size);
        if resized || mode.is_some() || uid.is_some() || gid.is_some() {
            return reply.error(Errno::EPERM);
        }
        reply.attr(&ATTRIBUTES_LIVE, &attributes);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if ino != FILE {
            return reply.error(Errno::EISDIR);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(size as usize, move |file| async move {
            match file.read(offset, size.into()).await {
                // SAFETY: the read has completed and the buffer is this request's own.
                Ok(Some(buf)) => reply.data(unsafe { buf.bytes() }),
                Ok(None) => reply.data(&[]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if data.is_empty() {
            return reply.written(0);
        }
        let data = Buf::copied(data);
        // O_SYNC includes O_DSYNC. A volume has no attributes for which the difference would
        // matter.
        let fua = flags.0 & libc::O_DSYNC != 0;
        self.run(data.len(), move |file| async move {
            match file.write(offset, data, fua).await {
                Ok(len) => reply.written(len as u32), // At most the requested length.
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.run(0, move |file| async move {
            match file.flush().await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // The file's size never changes, with or without FALLOC_FL_KEEP_SIZE.
        let unmap = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => true,
            libc::FALLOC_FL_ZERO_RANGE => false,
            _ => return reply.error(errno(&ErrorKind::Unsupported.into())),
        };
        self.run(0, move |file| async move {
            match file.write_zeroes(offset, length, unmap).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    /// Answers `SEEK_DATA` and `SEEK_HOLE`. The kernel answers the other kinds.
    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let aim = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else {
            return reply.error(Errno::ENXIO);
        };
        self.run(0, move |file| async move {
            match file.seek(offset, aim).await {
                // A volume has at most 2^63 bytes.
                Ok(Some(at)) => reply.offset(at.cast_signed()),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries = [
            (INodeNo::ROOT, FileType::Directory, "."),
            (INodeNo::ROOT, FileType::Directory, ".."),
            (FILE, FileType::RegularFile, self.volume.name()),
        ];
        for ((ino, kind, name), next) in entries.into_iter().zip(1..) {
            if next > offset && reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let block = self.preferred_block_bytes();
        let blocks = self.volume.info().size_bytes / u64::from(block);
        reply.statfs(blocks, 0, 0, 1, 0, block, 255, block);
    }
}
