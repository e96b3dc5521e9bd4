//! Opening, creating and changing files, of the cache and of mapped directories.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use forebay_block::Error;
use forebay_cluster::names::{Changes, Maker, NewFile, Opened};
use forebay_io::fuse::Held;
use fuser::{FileAttr, FileHandle, INodeNo, Request};

use crate::Users;
use crate::attributes::described;
use crate::filesystem::SharedFilesystem;
use crate::handles::Handle;

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
    pub(crate) fn handle(
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

    pub(crate) fn set(
        &self,
        number: u64,
        changes: &Changes,
        size: Option<u64>,
        handle: Option<FileHandle>,
    ) -> Result<FileAttr, Error> {
        let names = self.handles.names()?;
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
