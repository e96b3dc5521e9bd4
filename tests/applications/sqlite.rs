//! SQLite (sqlite3.h) with a write-ahead log: one table, a transaction for each change.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr::{null, null_mut};

use crate::Outcome;
use crate::library::{Library, functions};
use crate::store::Store;

type Pointer = *mut c_void;

functions! { Functions:
    sqlite3_open(*const c_char, *mut Pointer) -> c_int;
    sqlite3_exec(Pointer, *const c_char, Pointer, Pointer, *mut *mut c_char) -> c_int;
    sqlite3_prepare_v2(Pointer, *const c_char, c_int, *mut Pointer, *mut *const c_char) -> c_int;
    sqlite3_bind_blob(Pointer, c_int, *const c_void, c_int, *const c_void) -> c_int;
    sqlite3_step(Pointer) -> c_int;
    sqlite3_reset(Pointer) -> c_int;
    sqlite3_column_blob(Pointer, c_int) -> *const c_void;
    sqlite3_column_bytes(Pointer, c_int) -> c_int;
    sqlite3_finalize(Pointer) -> c_int;
    sqlite3_close(Pointer) -> c_int;
    sqlite3_errmsg(Pointer) -> *const c_char;
}

const OK: c_int = 0;
const ROW: c_int = 100;
const DONE: c_int = 101;

/// An open database with its two statements.
pub(crate) struct Sqlite {
    functions: Functions,
    database: Pointer,
    put: Pointer,
    get: Pointer,
}

impl Sqlite {
    /// Opens or creates the database in the file `path`.
    pub(crate) fn open(path: &Path, sync: bool) -> Outcome<Self> {
        let names = [c"libsqlite3.so.0", c"libsqlite3.so"];
        let functions = Functions::of(&Library::open(&names, "libsqlite3-0")?)?;
        let path = CString::new(path.as_os_str().as_bytes());
        let path = path.map_err(|error| error.to_string())?;
        let mut this = Self {
            functions,
            database: null_mut(),
            put: null_mut(),
            get: null_mut(),
        };
        // SAFETY: the arguments are a string and a place for the database.
        let opened =
            unsafe { (this.functions.sqlite3_open)(path.as_ptr(), &raw mut this.database) };
        this.check(opened, OK)?;
        this.execute(c"pragma journal_mode = wal")?;
        this.execute(match sync {
            true => c"pragma synchronous = full",
            false => c"pragma synchronous = normal",
        })?;
        this.execute(
            c"create table if not exists pairs (key blob primary key, value blob) without rowid",
        )?;
        this.put = this.prepare(c"insert or replace into pairs values (?1, ?2)")?;
        this.get = this.prepare(c"select value from pairs where key = ?1")?;
        Ok(this)
    }

    fn check(&self, found: c_int, wanted: c_int) -> Outcome<()> {
        if found == wanted {
            return Ok(());
        }
        // SAFETY: the library owns the text of its last failure, which is copied at once.
        let text = unsafe { CStr::from_ptr((self.functions.sqlite3_errmsg)(self.database)) };
        Err(format!("sqlite: {} ({found})", text.to_string_lossy()))
    }

    fn execute(&self, statement: &CStr) -> Outcome<()> {
        // SAFETY: the database is open, the string ends in zero, and neither rows nor messages are
        // requested.
        let done = unsafe {
            (self.functions.sqlite3_exec)(
                self.database,
                statement.as_ptr(),
                null_mut(),
                null_mut(),
                null_mut(),
            )
        };
        self.check(done, OK)
    }

    fn prepare(&self, statement: &CStr) -> Outcome<Pointer> {
        let mut prepared = null_mut();
        // SAFETY: the database is open, the string ends in zero, and there is a place for the
        // statement.
        let done = unsafe {
            (self.functions.sqlite3_prepare_v2)(
                self.database,
                statement.as_ptr(),
                -1,
                &raw mut prepared,
                null_mut(),
            )
        };
        self.check(done, OK).map(|()| prepared)
    }

    /// Runs a statement with these values to its first row or its end. Returns the first column of
    /// that row.
    fn run(&self, statement: Pointer, values: &[&[u8]]) -> Outcome<Option<Vec<u8>>> {
        let f = &self.functions;
        for (place, value) in (1..).zip(values) {
            let length = c_int::try_from(value.len()).map_err(|error| error.to_string())?;
            // SAFETY: the bytes stay in place until the statement is reset below.
            let bound = unsafe {
                (f.sqlite3_bind_blob)(statement, place, value.as_ptr().cast(), length, null())
            };
            self.check(bound, OK)?;
        }
        // SAFETY: the statement belongs to an open database. A row's bytes are copied before the
        // next call.
        unsafe {
            let stepped = (f.sqlite3_step)(statement);
            let mut row = None;
            if stepped == ROW {
                let length = (f.sqlite3_column_bytes)(statement, 0);
                let at = (f.sqlite3_column_blob)(statement, 0);
                let empty = at.is_null() || length <= 0;
                row = Some(match empty {
                    true => Vec::new(),
                    false => std::slice::from_raw_parts(at.cast(), length as usize).to_vec(),
                });
            }
            let failed = (stepped != ROW && stepped != DONE).then(|| self.check(stepped, DONE));
            (f.sqlite3_reset)(statement);
            failed.unwrap_or(Ok(())).map(|()| row)
        }
    }
}

impl Store for Sqlite {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome<()> {
        self.run(self.put, &[key, value]).map(drop)
    }

    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        self.run(self.get, &[key])
    }
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        // SAFETY: both functions take null, and no call follows.
        unsafe {
            (self.functions.sqlite3_finalize)(self.put);
            (self.functions.sqlite3_finalize)(self.get);
            (self.functions.sqlite3_close)(self.database);
        }
    }
}
