//! Functions of shared libraries that are looked for when they are needed: a machine without them builds and
//! tests everything else.

use std::ffi::{CStr, CString, c_void};

use crate::Outcome;

/// A library, for as long as the process lives.
pub(crate) struct Library(*mut c_void);

impl Library {
    /// The first of these that there is.
    ///
    /// # Errors
    /// If none is there: names the Debian package that has it.
    pub(crate) fn open(names: &[&CStr], package: &str) -> Outcome<Self> {
        for name in names {
            // SAFETY: a string that ends in zero; the libraries' initialisers are their own affair.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Self(handle));
            }
        }
        Err(format!("none of {names:?} is here: install {package}"))
    }

    /// Where a function is.
    ///
    /// # Safety
    /// `F` is a pointer to a function of the type that the library's header gives `name`.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &str) -> Outcome<F> {
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        let text = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a library that stays open, and a string that ends in zero.
        let found = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        if found.is_null() {
            return Err(format!("the library has no {name}"));
        }
        // SAFETY: as large as a pointer, and of the right type as the caller promises.
        Ok(unsafe { std::mem::transmute_copy(&found) })
    }
}

/// A table of a library's functions, by their names in C.
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
