//! Directories that programs list while their entries change.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::cluster::{Cluster, can_mount};
use super::names;

/// A directory stream of the C library.
struct Listing(*mut libc::DIR);

impl Listing {
    fn open(path: &Path) -> Self {
        let path = CString::new(path.as_os_str().as_bytes()).expect("a path");
        // SAFETY: a string that lives through the call.
        let open = unsafe { libc::opendir(path.as_ptr()) };
        assert!(!open.is_null(), "{}", std::io::Error::last_os_error());
        Self(open)
    }

    fn rewind(&self) {
        // SAFETY: it is open.
        unsafe { libc::rewinddir(self.0) };
    }

    fn next(&self) -> Option<String> {
        // SAFETY: it is open, and one thread uses it.
        let entry = unsafe { libc::readdir(self.0).as_ref() }?;
        // SAFETY: the name ends with a zero, and stays until the next call.
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) };
        Some(name.to_str().expect("text").to_owned())
    }

    /// Returns the names that are left, sorted.
    fn rest(&self) -> Vec<String> {
        let names = std::iter::from_fn(|| self.next());
        let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
        names.sort();
        names
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        // SAFETY: it is open, and not used any more.
        unsafe { libc::closedir(self.0) };
    }
}

#[test]
fn a_listing_from_the_start_has_the_present_entries() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("listing");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join("many"));
    fs::create_dir(&a).expect("made");
    // More than one request of the kernel.
    let before: Vec<String> = (0..2000)
        .map(|number| format!("file-{number:04}"))
        .collect();
    for name in &before {
        fs::write(a.join(name), "").expect("written");
    }
    let listing = Listing::open(&a);
    assert_eq!(listing.rest(), before);
    fs::remove_file(b.join(&before[0])).expect("removed");
    fs::write(b.join("new"), "").expect("written");
    assert_eq!(listing.rest(), [] as [&str; 0], "it is at its end");
    let now = names(&b);
    listing.rewind();
    assert_eq!(listing.rest(), now);
    // In the middle of a listing too.
    listing.rewind();
    listing.next().expect("an entry");
    fs::remove_file(b.join("new")).expect("removed");
    listing.rewind();
    assert_eq!(listing.rest(), before[1..]);
}
