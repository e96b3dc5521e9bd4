//! Key-value stores.

use std::path::Path;

use crate::Outcome;
use crate::rocksdb::RocksDb;
use crate::sqlite::Sqlite;

/// A database in a folder.
pub(crate) trait Store {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome<()>;
    fn get(&mut self, key: &[u8]) -> Outcome<Option<Vec<u8>>>;
}

/// Opens or creates a database of a kind. With `sync`, a change survives a crash once
/// [`Store::put`] has returned.
///
/// # Errors
/// Returns an error if the kind is unknown, its library is missing, or it cannot be opened.
pub(crate) fn open(kind: &str, folder: &Path, sync: bool) -> Outcome<Box<dyn Store>> {
    let made = std::fs::create_dir_all(folder);
    made.map_err(|error| format!("{}: {error}", folder.display()))?;
    match kind {
        "rocksdb" => Ok(Box::new(RocksDb::open(folder, sync)?)),
        "sqlite" => Ok(Box::new(Sqlite::open(&folder.join("database"), sync)?)),
        _ => Err(format!("there is no store {kind:?}: rocksdb, sqlite")),
    }
}
