//! RocksDB, by its functions for C (rocksdb/c.h), with LevelDB's sizes: many small tables, each
//! synced.

use std::ffi::{CStr, CString, c_char, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::null_mut;

use crate::Outcome;
use crate::library::{Library, functions};
use crate::store::Store;

type Pointer = *mut c_void;

functions! { Functions:
    rocksdb_options_create() -> Pointer;
    rocksdb_options_set_create_if_missing(Pointer, c_uchar);
    rocksdb_options_set_compression(Pointer, c_int);
    rocksdb_options_set_write_buffer_size(Pointer, usize);
    rocksdb_options_set_target_file_size_base(Pointer, u64);
    rocksdb_options_set_max_bytes_for_level_base(Pointer, u64);
    rocksdb_options_set_paranoid_checks(Pointer, c_uchar);
    rocksdb_writeoptions_create() -> Pointer;
    rocksdb_writeoptions_set_sync(Pointer, c_uchar);
    rocksdb_readoptions_create() -> Pointer;
    rocksdb_open(Pointer, *const c_char, *mut *mut c_char) -> Pointer;
    rocksdb_put(Pointer, Pointer, *const c_char, usize, *const c_char, usize, *mut *mut c_char);
    rocksdb_get(Pointer, Pointer, *const c_char, usize, *mut usize, *mut *mut c_char)
        -> *mut c_char;
    rocksdb_free(*mut c_char);
    rocksdb_close(Pointer);
}

/// LevelDB's write buffer and size of tables, bytes. `db_bench` gets the same.
const BUFFER_BYTES: usize = 4 << 20;
const TABLE_BYTES: u64 = 2 << 20;
const LEVEL_BYTES: u64 = 10 << 20;

/// An open database.
pub(crate) struct RocksDb {
    functions: Functions,
    database: Pointer,
    writing: Pointer,
    reading: Pointer,
}

impl RocksDb {
    /// Opens or creates the database in `folder`.
    pub(crate) fn open(folder: &Path, sync: bool) -> Outcome<Self> {
        let names = [c"librocksdb.so.7.8", c"librocksdb.so"];
        let functions = Functions::of(&Library::open(&names, "rocksdb-tools")?)?;
        let path = CString::new(folder.as_os_str().as_bytes());
        let path = path.map_err(|error| error.to_string())?;
        let f = &functions;
        let mut failure = null_mut();
        // SAFETY: each call gets the results of earlier ones. None of them is freed before the
        // process ends.
        let (database, writing, reading) = unsafe {
            let options = (f.rocksdb_options_create)();
            (f.rocksdb_options_set_create_if_missing)(options, 1);
            (f.rocksdb_options_set_compression)(options, 0);
            (f.rocksdb_options_set_write_buffer_size)(options, BUFFER_BYTES);
            (f.rocksdb_options_set_target_file_size_base)(options, TABLE_BYTES);
            (f.rocksdb_options_set_max_bytes_for_level_base)(options, LEVEL_BYTES);
            (f.rocksdb_options_set_paranoid_checks)(options, 1);
            let writing = (f.rocksdb_writeoptions_create)();
            (f.rocksdb_writeoptions_set_sync)(writing, c_uchar::from(sync));
            let reading = (f.rocksdb_readoptions_create)();
            let database = (f.rocksdb_open)(options, path.as_ptr(), &raw mut failure);
            (database, writing, reading)
        };
        let this = Self {
            functions,
            database,
            writing,
            reading,
        };
        this.check(failure).map(|()| this)
    }

    /// Returns the library's message if a call failed.
    fn check(&self, failure: *mut c_char) -> Outcome<()> {
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: the library allocated the string, and it is freed after it was read.
        let text = unsafe {
            let text = CStr::from_ptr(failure).to_string_lossy().into_owned();
            (self.functions.rocksdb_free)(failure);
            text
        };
        Err(format!("rocksdb: {text}"))
    }
}

impl Store for RocksDb {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        let (key_at, value_at) = (key.as_ptr().cast(), value.as_ptr().cast());
        let mut failure = null_mut();
        // SAFETY: the database is open, and the bytes outlive the call.
        unsafe {
            (self.functions.rocksdb_put)(
                self.database,
                self.writing,
                key_at,
                key.len(),
                value_at,
                value.len(),
                &raw mut failure,
            );
        }
        self.check(failure)
    }

    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let (mut length, mut failure) = (0, null_mut());
        // SAFETY: as for `put`.
        let found = unsafe {
            (self.functions.rocksdb_get)(
                self.database,
                self.reading,
                key.as_ptr().cast(),
                key.len(),
                &raw mut length,
                &raw mut failure,
            )
        };
        self.check(failure)?;
        if found.is_null() {
            return Ok(None);
        }
        // SAFETY: the library allocated that many bytes, and they are freed after they were copied.
        let value = unsafe {
            let value = std::slice::from_raw_parts(found.cast(), length).to_vec();
            (self.functions.rocksdb_free)(found);
            value
        };
        Ok(Some(value))
    }
}

impl Drop for RocksDb {
    fn drop(&mut self) {
        if !self.database.is_null() {
            // SAFETY: the database is open, and no call follows.
            unsafe { (self.functions.rocksdb_close)(self.database) };
        }
    }
}
