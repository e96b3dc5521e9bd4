//! Opening, creating and changing files, of the cache and of mapped directories.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use forebay_block::Error;
use forebay_cluster::names::{Changes, Maker, NewFile, Opened};
use forebay_io::fuse::Held;
use fuser::{
    FileAttr, FileHandle, FopenFlags, Generation, INodeNo, ReplyCreate, ReplyOpen, Request,
};

use crate::Users;
use crate::attributes::described;
use crate::errors::errno_of;
use crate::filesystem::{SharedFilesystem, TTL};
use crate::handles::Handle;

/// Files bypass the kernel's cache. The kernel reports each close, which ends locks.
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

impl SharedFilesystem {
    /// Returns a file to create for a request. It belongs to the requesting user if all users may
    /// use the mount.
    pub(crate) fn new_file<'a>(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &'a OsStr),
        mode: u32,
    ) -> NewFile<'a> {
        let maker = Maker {
            user: request.uid(),
            group: request.gid(),
        };
        NewFile {
            parent: parent.0,
            name,
            mode,
            maker: (self.users == Users::All).then_some(maker),
        }
    }

    pub(crate) fn clear_set_id(&self, number: u64) -> io::Result<()> {
        self.handles.names()?.clear_set_id(number)
    }

    /// Creates the handle of an opened file, with the kernel's backing file if it is mapped.
    fn handle(
        &self,
        number: u64,
        opened: Opened,
    ) -> Result<(FileHandle, Option<Arc<Held>>), Error> {
        let (handle, backing) = match opened {
            Opened::Cached(file) => (Handle::File(Arc::new(file)), None),
            Opened::Mapped(file) => {
                let mapped = self.handles.mapped(number, file)?;
                let backing = Arc::clone(&mapped.backing);
                (Handle::Mapped(Arc::new(mapped)), Some(backing))
            }
        };
        Ok((FileHandle(self.handles.add(handle)?), backing))
    }

    /// Answers with the handle of an opened file.
    pub(crate) fn answer_open(&self, number: u64, opened: Result<Opened, Error>, reply: ReplyOpen) {
        match opened.and_then(|opened| self.handle(number, opened)) {
            Ok((handle, None)) => reply.opened(handle, OPENED),
            Ok((handle, Some(backing))) => {
                // SAFETY: the backing file belongs to this mount, which holds it until after the
                // answer.
                let id = unsafe { reply.wrap_backing(backing.number()) };
                reply.opened_passthrough(handle, FopenFlags::empty(), &id);
                // This process closes it.
                id.into_raw();
            }
            Err(error) => reply.error(errno_of(&error)),
        }
    }

    /// Answers with the handle of a created file.
    pub(crate) fn answer_create(
        &self,
        created: Result<(FileAttr, Opened), Error>,
        reply: ReplyCreate,
    ) {
        let handle = created.and_then(|(attributes, opened)| {
            Ok((attributes, self.handle(attributes.ino.0, opened)?))
        });
        let new = Generation(0);
        match handle {
            Ok((attributes, (handle, None))) => {
                reply.created(&TTL, &attributes, new, handle, OPENED);
            }
            Ok((attributes, (handle, Some(backing)))) => {
                let flags = FopenFlags::empty();
                // SAFETY: the backing file belongs to this mount, which holds it until after the
                // answer.
                let id = unsafe { reply.wrap_backing(backing.number()) };
                reply.created_passthrough(&TTL, &attributes, new, handle, flags, &id);
                // This process closes it.
                id.into_raw();
            }
            Err(error) => reply.error(errno_of(&error)),
        }
    }

    pub(crate) fn create_file(
        &self,
        file: &NewFile<'_>,
        flags: i32,
    ) -> Result<(FileAttr, Opened), Error> {
        let names = self.handles.names()?;
        let (mut attributes, opened) = names.create(file, flags & libc::O_EXCL != 0)?;
        if flags & libc::O_TRUNC != 0 && attributes.metadata.len() > 0 {
            opened.truncate(0)?;
            attributes = names.attributes(attributes.number)?;
        }
        Ok((described(&attributes), opened))
    }

    /// Sets attributes for a request, and the size of a file.
    pub(crate) fn set(
        &self,
        request: &Request,
        number: u64,
        changes: &Changes,
        size: Option<u64>,
        handle: Option<FileHandle>,
    ) -> Result<FileAttr, Error> {
        let names = self.handles.names()?;
        // With `FUSE_HANDLE_KILLPRIV_V2`, a change of nothing stands for a write to a mapped file
        // by the kernel. The source clears the bits at a change of the owner.
        if size.map_or_else(|| changes.is_empty(), |_| request.uid() != 0) {
            names.clear_set_id(number)?;
        }
        if let Some(size) = size {
            match handle
                .map(|handle| self.handles.find(handle.0))
                .transpose()?
            {
                Some(Handle::File(file)) => file.truncate(size)?,
                Some(Handle::Mapped(mapped)) => mapped.file.set_len(size)?,
                Some(Handle::Directory(_)) | None => names.open(number)?.truncate(size)?,
            }
        }
        Ok(described(&names.change(number, changes)?))
    }
}
