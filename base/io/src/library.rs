//! Shared libraries that are loaded while the program runs.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use forebay_block::{Error, ErrorKind, Result};

/// A loaded library. It stays loaded until the process ends, since threads of the library may run.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: the handle is a number for the dynamic linker, whose functions any thread may call.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library `name`, with all libraries that it needs.
    ///
    /// # Errors
    /// `NotFound` with the linker's reason.
    ///
    /// # Safety
    /// The library's own code runs in this process. It must be one that the system has installed
    /// under this name, and loading it must have no effect on this program.
    pub unsafe fn open(name: &CStr) -> Result<Self> {
        // SAFETY: the name ends with a zero byte, and the caller answers for the library's code.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Self).ok_or_else(|| {
            // SAFETY: the call returns the reason of this thread's last failure, or null.
            let reason = unsafe { libc::dlerror() };
            let reason = match reason.is_null() {
                true => format!("{} cannot be loaded", name.to_string_lossy()),
                // SAFETY: it is text that ends with a zero byte, until the next such call.
                false => unsafe { CStr::from_ptr(reason) }
                    .to_string_lossy()
                    .into_owned(),
            };
            Error::new(ErrorKind::NotFound, reason)
        })
    }

    /// Returns the address of a function of the library, or of a library that it needs.
    #[must_use]
    pub fn symbol(self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the library is loaded, and the name ends with a zero byte.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_in_libraries_that_are_there() {
        // SAFETY: the C library is loaded in any case.
        let library = unsafe { Library::open(c"libc.so.6") }.expect("it is there");
        assert!(library.symbol(c"getpid").is_some());
        assert!(library.symbol(c"no_such_function").is_none());
        // SAFETY: there is no such library.
        let error = unsafe { Library::open(c"libno-such.so.0") }.expect_err("none");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.report().contains("libno-such.so.0"), "{error}");
    }
}
