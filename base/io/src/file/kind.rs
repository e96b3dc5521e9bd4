//! Kinds of files, and which of them can be a medium.
//!
//! To open a named pipe may wait for ever for its other end, and to open a character device may
//! start something. So the kind is found out before a file is opened.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use forebay_block::{Error, ErrorKind, Result};

/// Returns what kind of file this is, in words, with an article.
#[must_use]
pub fn kind_in_words(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => "a regular file",
        () if kind.is_block_device() => "a block device",
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() => "a character device",
        () if kind.is_symlink() => "a symbolic link",
        () => "a file of an unknown kind",
    }
}

/// Refuses anything but a regular file or a block device.
///
/// # Errors
/// `InvalidInput`, with the kind.
pub(super) fn check_medium(metadata: &Metadata) -> Result<()> {
    if is_medium(metadata) {
        return Ok(());
    }
    let kind = kind_in_words(metadata);
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!(
            "it is {kind}, and neither a regular file nor a block device\n\
             help: name a regular file or a block device"
        ),
    ))
}

fn is_medium(metadata: &Metadata) -> bool {
    metadata.is_file() || metadata.file_type().is_block_device()
}

/// Opens a regular file or a block device for reading, to look at its content. Anything else is not
/// opened.
///
/// # Errors
/// `InvalidInput` for anything else, or the system's error.
pub fn open_to_look(path: &Path) -> io::Result<File> {
    let refuse = |metadata: &Metadata| {
        let what = format!("{} is {}", path.display(), kind_in_words(metadata));
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    };
    let found = std::fs::metadata(path)?;
    if !is_medium(&found) {
        return refuse(&found);
    }
    // A pipe that took its place meanwhile is not waited for.
    let mut options = OpenOptions::new();
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = options.read(true).custom_flags(flags).open(path)?;
    let opened = file.metadata()?;
    match is_medium(&opened) {
        true => Ok(file),
        false => refuse(&opened),
    }
}

/// Returns what kind of file this is, in words, with an article. Returns `None` for a regular file
/// and where there is none. A symbolic link counts as the file that it leads to.
#[must_use]
pub fn irregular_kind(path: &Path) -> Option<&'static str> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => None,
        Ok(found) => Some(kind_in_words(&found)),
        Err(error) => leads_nowhere(path, &error).then_some("a symbolic link that leads nowhere"),
    }
}

/// Returns whether a file is missing although there is a symbolic link at this path. `error` is
/// that of looking at the file.
fn leads_nowhere(path: &Path, error: &io::Error) -> bool {
    let is_missing = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ELOOP));
    is_missing && std::fs::symlink_metadata(path).is_ok()
}

/// Opens a regular file with these options, which may create it. Anything else is not opened. The
/// flags of the options are replaced.
///
/// # Errors
/// `InvalidInput` for anything else, with the path and the kind; otherwise the error of the
/// operating system.
pub fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let refuse = |kind: &str| {
        let what = format!("{} is {kind} and not a regular file", path.display());
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    };
    if let Some(kind) = irregular_kind(path) {
        return refuse(kind);
    }
    // A pipe that took its place meanwhile is not waited for.
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = options.custom_flags(flags).open(path)?;
    let opened = file.metadata()?;
    match opened.is_file() {
        true => Ok(file),
        false => refuse(kind_in_words(&opened)),
    }
}

/// Removes `O_NONBLOCK`, which only the opening needs. With it, io_uring fails a request that has
/// to wait.
///
/// # Errors
/// The system's error.
pub(super) fn make_blocking(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) } {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::file::{File as Medium, FileOptions};
    use crate::pmem::PmemMapping;
    use crate::testing::Scratch;
    use crate::{Engine, Reactor};

    /// A file of each kind that is no medium, with the word for it.
    fn others(scratch: &Scratch) -> Vec<(std::path::PathBuf, &'static str)> {
        let pipe = scratch.path("pipe");
        let name = CString::new(pipe.as_os_str().as_bytes()).expect("no zero");
        // SAFETY: the path is a string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let socket = scratch.path("socket");
        drop(UnixListener::bind(&socket).expect("bound"));
        let directory = scratch.path("directory");
        std::fs::create_dir(&directory).expect("made");
        let link = scratch.path("link");
        std::os::unix::fs::symlink(&pipe, &link).expect("made");
        vec![
            (pipe, "a named pipe"),
            (link, "a named pipe"),
            (socket, "a socket"),
            (directory, "a directory"),
            ("/dev/null".into(), "a character device"),
        ]
    }

    #[test]
    fn files_of_other_kinds_are_named_and_not_opened_as_media() {
        let scratch = Scratch::new();
        for (path, kind) in others(&scratch) {
            for (read_only, create_bytes) in [(false, None), (true, None), (false, Some(1 << 20))] {
                let options = FileOptions {
                    read_only,
                    create_bytes,
                    exclusive: true,
                    ..FileOptions::default()
                };
                let name = path.clone();
                let reactor = Reactor::new(Engine::Threads).expect("threads");
                let refused = reactor.run(async move {
                    Medium::open(&name, &options)
                        .map(|_| ())
                        .expect_err("no medium")
                });
                assert_eq!(refused.kind(), ErrorKind::InvalidInput);
                let report = refused.report();
                for part in [path.to_str().expect("text"), kind, "help: "] {
                    assert!(report.contains(part), "{part}: {report}");
                }
            }
            let refused = open_to_look(&path).expect_err("no medium");
            assert!(refused.to_string().contains(kind), "{refused}");
            let refused = PmemMapping::open(&path, None).expect_err("cannot be mapped");
            let report = refused.report();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{report}");
            assert!(
                report.contains(kind) && report.contains("help: "),
                "{report}"
            );
        }
    }

    #[test]
    fn only_a_regular_file_is_opened_as_one() {
        let scratch = Scratch::new();
        let mut others = others(&scratch);
        let (dangling, round) = (scratch.path("dangling"), scratch.path("round"));
        std::os::unix::fs::symlink(scratch.path("none"), &dangling).expect("made");
        std::os::unix::fs::symlink(&round, &round).expect("made");
        others.push((dangling, "a symbolic link that leads nowhere"));
        others.push((round, "a symbolic link that leads nowhere"));
        for (path, kind) in others {
            assert_eq!(irregular_kind(&path), Some(kind));
            let mut writing = OpenOptions::new();
            writing.write(true).create(true).truncate(true);
            for options in [OpenOptions::new().read(true), &mut writing] {
                let refused = open_regular(&path, options).expect_err("no regular file");
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
                assert!(refused.to_string().contains(kind), "{refused}");
            }
        }
        let path = scratch.path("file");
        assert_eq!(irregular_kind(&path), None);
        let missing = open_regular(&path, OpenOptions::new().read(true)).expect_err("none");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        std::fs::write(&path, [7; 9]).expect("a file");
        let link = scratch.path("to-file");
        std::os::unix::fs::symlink(&path, &link).expect("made");
        for path in [path, link] {
            assert_eq!(irregular_kind(&path), None);
            let file = open_regular(&path, OpenOptions::new().read(true)).expect("opened");
            assert_eq!(file.metadata().expect("open").len(), 9);
        }
    }

    #[test]
    fn a_file_that_is_opened_does_not_refuse_to_wait() {
        let scratch = Scratch::new();
        let path = scratch.path("file");
        std::fs::write(&path, [7; 4096]).expect("a file");
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(&path)
            .expect("opened");
        let flags = || {
            // SAFETY: the descriptor is open; no memory is involved.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) }
        };
        assert_ne!(flags() & libc::O_NONBLOCK, 0);
        make_blocking(&file).expect("done");
        assert_eq!(flags() & libc::O_NONBLOCK, 0);
    }
}
