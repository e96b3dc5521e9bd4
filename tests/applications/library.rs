//! Functions of shared libraries, found at run time. A machine without the libraries builds and
//! tests everything else.

use std::ffi::{CStr, CString, c_void};

use crate::Outcome;

/// A library, open until the process ends.
pub(crate) struct Library(*mut c_void);

impl Library {
    /// Opens the first of `names` that exists.
    ///
    /// # Errors
    /// If none exists, returns an error that names the Debian package.
    pub(crate) fn open(names: &[&CStr], package: &str) -> Outcome<Self> {
        for name in names {
            // SAFETY: the string ends in zero. The libraries' initialisers are trusted.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Self(handle));
            }
        }
        Err(format!("none of {names:?} exists: install {package}"))
    }

    /// Returns the address of a function.
    ///
    /// # Safety
    /// `F` must be a pointer to a function of the type that the library's header gives `name`.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Outcome<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: the library stays open, and the string ends in zero.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() {
            return Err(format!("the library has no {name}"));
        }
        // SAFETY: `F` is as large as a pointer, and of the right type as the caller promises.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

/// Defines a table of a library's functions, by their names in C.
macro_rules! functions {
    ($table:ident: $($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            fn of(library: &$crate::library::Library) -> $crate::Outcome<Self> {
                Ok(Self {
                    // SAFETY: the types are those of the library's header.
                    $($name: unsafe { library.function(stringify!($name)) }?,)*
                })
            }
        }
    };
}
pub(crate) use functions;
