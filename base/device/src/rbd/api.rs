//! Functions of librbd and librados, loaded when the first image is opened.
//!
//! The signatures are those of `rbd/librbd.h` and `rados/librados.h`. Both libraries keep the
//! signature of a function as long as their names (`.so.1`, `.so.2`) stay. All functions here exist
//! since Ceph 14, except those of [`Api::rbd_aio_write_zeroes`]'s kind, which may be missing.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::library::Library;

/// Handle of a cluster, a pool, an image or a completion.
pub(super) type Handle = *mut c_void;
/// Function that librbd calls on a thread of its own when a request has ended.
pub(super) type Callback = unsafe extern "C" fn(completion: Handle, argument: Handle);

/// Flag of a write of zeroes that keeps the space (`RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`).
pub(super) const THICK: c_int = 1;
/// Mode of the exclusive lock (`RBD_LOCK_MODE_EXCLUSIVE`).
pub(super) const EXCLUSIVE: c_int = 0;
/// Feature of images that have an exclusive lock (`RBD_FEATURE_EXCLUSIVE_LOCK`).
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;

/// Result of a request of a client on the cluster's blocklist (`ESHUTDOWN`).
pub(super) const BLOCKLISTED: c_int = -108;
/// Result of a change without the exclusive lock (`EROFS`).
pub(super) const NOT_OWNER: c_int = -30;

/// A client that has an image open (`rbd_image_watcher_t`).
#[repr(C)]
pub(super) struct Watcher {
    pub(super) address: *mut c_char,
    pub(super) client: i64,
    pub(super) cookie: u64,
}

/// A setting of an image (`rbd_config_option_t`).
#[repr(C)]
pub(super) struct Setting {
    pub(super) name: *mut c_char,
    pub(super) value: *mut c_char,
    pub(super) source: c_int,
}

/// Declares the table of functions, and how it is loaded.
macro_rules! table {
    (
        required { $($name:ident($($argument:ty),*) $(-> $result:ty)?;)* }
        optional { $($extra:ident($($more:ty),*) -> $out:ty;)* }
    ) => {
        /// Table of functions.
        pub(super) struct Api {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(super) $extra: Option<unsafe extern "C" fn($($more),*) -> $out>,)*
        }

        impl Api {
            /// Finds all functions.
            fn find(library: Library) -> Result<Self> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        let address = address(library, name).ok_or_else(|| missing(name))?;
                        // SAFETY: the library has a function of this name, whose signature is the
                        // one that is declared here (see the module's documentation).
                        unsafe { std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >(address) }
                    },)*
                    $($extra: address(library, concat!(stringify!($extra), "\0")).map(|address| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($more),*) -> $out,
                        >(address) }
                    }),)*
                })
            }
        }
    };
}

table! {
    required {
    rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_shutdown(Handle);
    rados_cluster_fsid(Handle, *mut c_char, usize) -> c_int;
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_destroy(Handle);
    rados_ioctx_get_id(Handle) -> i64;
    rbd_open(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_open_read_only(Handle, *const c_char, *mut Handle, *const c_char) -> c_int;
    rbd_close(Handle) -> c_int;
    rbd_get_size(Handle, *mut u64) -> c_int;
    rbd_get_features(Handle, *mut u64) -> c_int;
    rbd_get_id(Handle, *mut c_char, usize) -> c_int;
    rbd_snap_get_id(Handle, *const c_char, *mut u64) -> c_int;
    rbd_config_image_list(Handle, *mut Setting, *mut c_int) -> c_int;
    rbd_config_image_list_cleanup(*mut Setting, c_int);
    rbd_is_exclusive_lock_owner(Handle, *mut c_int) -> c_int;
    rbd_lock_acquire(Handle, c_int) -> c_int;
    rbd_lock_release(Handle) -> c_int;
    rbd_lock_break(Handle, c_int, *const c_char) -> c_int;
    rbd_lock_get_owners(Handle, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    rbd_watchers_list(Handle, *mut Watcher, *mut usize) -> c_int;
    rbd_watchers_list_cleanup(*mut Watcher, usize);
    rbd_metadata_get(Handle, *const c_char, *mut c_char, *mut usize) -> c_int;
    rbd_metadata_set(Handle, *const c_char, *const c_char) -> c_int;
    rbd_metadata_remove(Handle, *const c_char) -> c_int;
    rbd_aio_create_completion(Handle, Callback, *mut Handle) -> c_int;
    rbd_aio_get_return_value(Handle) -> isize;
    rbd_aio_release(Handle);
    rbd_aio_read(Handle, u64, usize, *mut c_char, Handle) -> c_int;
    rbd_aio_write(Handle, u64, usize, *const c_char, Handle) -> c_int;
    rbd_aio_discard(Handle, u64, u64, Handle) -> c_int;
    }
    optional {
    rbd_aio_write_zeroes(Handle, u64, usize, Handle, c_int, c_int) -> c_int;
    }
}

fn address(library: Library, name: &str) -> Option<*mut c_void> {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).expect("one zero byte, at the end");
    library.symbol(name).map(std::ptr::NonNull::as_ptr)
}

fn missing(name: &str) -> Error {
    let what = format!(
        "librbd has no function {}: it is older than Ceph 14\n\
         help: install a newer package librbd1 (Debian, Ubuntu) or librbd (other systems)",
        name.trim_end_matches('\0')
    );
    Error::new(ErrorKind::Unsupported, what)
}

/// Adds the remedy to the error of a library that is missing.
pub(super) fn not_installed(error: Error) -> Error {
    let what = "Ceph's client library is not on this machine\n\
         help: install the package librbd1 (Debian, Ubuntu) or librbd (other systems)";
    error.context(what)
}

impl Api {
    /// Returns the functions of this machine's librbd, loaded once.
    ///
    /// # Errors
    /// `NotFound` if it is not installed, `Unsupported` if it is too old.
    pub(super) fn load() -> Result<&'static Self> {
        static LOADED: OnceLock<Result<Api>> = OnceLock::new();
        let loaded = LOADED.get_or_init(|| {
            // SAFETY: the system's Ceph client. Loading it starts no threads and takes no signals.
            let library = unsafe { Library::open(c"librbd.so.1") }.map_err(not_installed)?;
            Self::find(library)
        });
        loaded.as_ref().map_err(Error::clone)
    }
}
