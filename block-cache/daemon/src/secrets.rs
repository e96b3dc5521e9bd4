//! Private files: the secrets of NVMe hosts, and keys.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use forebay_auth::Secrets;
use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::file::open_regular;
use zeroize::Zeroizing;

/// Largest such file, bytes: two secrets for each of 1,000 hosts take a third of it.
const MAX_BYTES: u64 = 1 << 20;

/// Reads the secrets in the file at `path`.
///
/// # Errors
/// `Permission` if other users can read or change it; `InvalidInput` for an invalid file, with the
/// line.
pub(crate) fn read(path: &Path) -> Result<Secrets> {
    let text = read_private(path, "the secrets")?;
    Secrets::parse(&text).context(|| format!("the secrets in {}", path.display()))
}

/// Reads `what` from the private file at `path`.
///
/// # Errors
/// `Permission` if other users can read or change it; `InvalidInput` for an invalid file.
pub(crate) fn read_private(path: &Path, what: &str) -> Result<Zeroizing<String>> {
    let shown = path.display();
    let unreadable = || format!("cannot read {what} in {shown}");
    let opened = open_regular(path, File::options().read(true));
    let mut file = opened.context(unreadable)?;
    // Of the open file: the check applies to the file that is read.
    let about = file.metadata().context(unreadable)?;
    if about.len() > MAX_BYTES {
        let why =
            format!("{shown}, which should have {what}, is above 1 MiB\nhelp: name the right file");
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    let mode = about.mode() & 0o7777;
    if mode & 0o077 != 0 {
        let why = format!(
            "others can read or change {what} in {shown} (mode {mode:04o})\n\
             help: run `chmod 0600 {shown}`, and replace {what} if anybody may have seen the file"
        );
        return Err(Error::new(ErrorKind::Permission, why));
    }
    let process = std::fs::metadata("/proc/self").context(|| "looking at /proc/self")?;
    let owner = about.uid();
    if owner != 0 && owner != process.uid() {
        let why = format!(
            "{what} in {shown} can be read and changed by user {owner}, whose file it is\n\
             help: run `chown {} {shown}`",
            process.uid()
        );
        return Err(Error::new(ErrorKind::Permission, why));
    }
    // A buffer that grows would leave copies in memory.
    let room = usize::try_from(about.len()).unwrap_or(0) + 64;
    let mut text = Zeroizing::new(String::with_capacity(room));
    file.read_to_string(&mut text).context(unreadable)?;
    Ok(text)
}
