//! Opening, creating and changing files, of the cache and of mapped directories.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_block::Error;
use forebay_cluster::names::{Changes, Opened};
use forebay_io::fuse::Held;
use fuser::{FileAttr, FileHandle, INodeNo};

use crate::attributes::described;
use crate::filesystem::SharedFilesystem;
use crate::handles::Handle;

impl SharedFilesystem {
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
        (parent, name): (INodeNo, &OsStr),
        mode: u32,
        flags: i32,
    ) -> Result<(FileAttr, Opened), Error> {
        let names = self.handles.names()?;
        let (mut attributes, opened) =
            names.create(parent.0, name, mode, flags & libc::O_EXCL != 0)?;
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
