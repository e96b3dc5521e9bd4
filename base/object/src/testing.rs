//! A store in memory, and the decoders on any bytes, for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Range;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind};

use crate::format::log::{Header, header_bytes};
use crate::format::superblock::Superblock;
use crate::format::{checkpoint, crc32c};
use crate::store::{Answer, Creation, Listed, Progress, Store};

/// A store in the memory of this process. It answers at once.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: RefCell<BTreeMap<String, Bytes>>,
}

impl MemoryStore {
    /// Creates a store without objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the content of an object.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Bytes> {
        self.objects.borrow().get(name).cloned()
    }

    /// Replaces the content of an object, which a store does to none. Removes it with `None`.
    pub fn set(&self, name: &str, content: Option<Bytes>) {
        let mut objects = self.objects.borrow_mut();
        match content {
            Some(content) => objects.insert(name.to_owned(), content),
            None => objects.remove(name),
        };
    }
}

impl Store for MemoryStore {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn create<'a>(&'a self, name: &'a str, content: Bytes) -> Answer<'a, Creation> {
        let mut objects = self.objects.borrow_mut();
        let outcome = match objects.contains_key(name) {
            true => Creation::Exists,
            false => {
                objects.insert(name.to_owned(), content);
                Creation::Created
            }
        };
        Box::pin(ready(Ok(outcome)))
    }

    fn read<'a>(&'a self, name: &'a str, bytes: Range<u64>) -> Answer<'a, Bytes> {
        let objects = self.objects.borrow();
        let content = objects.get(name).map(|content| {
            let end = usize::try_from(bytes.end).map_or(content.len(), |it| it.min(content.len()));
            let start = usize::try_from(bytes.start).map_or(end, |it| it.min(end));
            content.slice(start..end)
        });
        let missing = || Error::new(ErrorKind::NotFound, format!("there is no object {name}"));
        Box::pin(ready(content.ok_or_else(missing)))
    }

    fn list_with<'a>(&'a self, prefix: &'a str, _: Progress) -> Answer<'a, Vec<Listed>> {
        let objects = self.objects.borrow();
        let from = objects.range(prefix.to_owned()..);
        let listed = from.take_while(|(name, _)| name.starts_with(prefix));
        let listed = listed.map(|(name, content)| Listed {
            name: name.clone(),
            bytes: content.len() as u64,
        });
        Box::pin(ready(Ok(listed.collect())))
    }

    fn delete<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        self.objects.borrow_mut().remove(name);
        Box::pin(ready(Ok(())))
    }
}

/// Sets all checksums of an object to what they should be, as far as the lengths allow.
pub fn repair(bytes: &mut [u8]) {
    let put = |at: usize, value: u32, bytes: &mut [u8]| {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    };
    match bytes.get(..8) {
        Some(b"FBOBJVOL") if bytes.len() == 64 => put(60, crc32c(&bytes[..60]), bytes),
        Some(b"FBOBJLOG") if bytes.len() >= 128 => {
            put(124, crc32c(&bytes[..124]), bytes);
            let end = header_bytes(bytes).unwrap_or(usize::MAX).min(bytes.len());
            put(12, crc32c(&bytes[128..end]), bytes);
            put(124, crc32c(&bytes[..124]), bytes);
        }
        Some(b"FBOBJMAP") if bytes.len() >= 160 => {
            put(156, crc32c(&bytes[..156]), bytes);
            let end = checkpoint::tables_bytes(bytes).unwrap_or(u64::MAX);
            let end = usize::try_from(end).unwrap_or(usize::MAX).min(bytes.len());
            put(12, crc32c(&bytes[160..end]), bytes);
            put(128, crc32c(&bytes[end..]), bytes);
            put(156, crc32c(&bytes[..156]), bytes);
        }
        _ => {}
    }
}

/// Decodes bytes as each object of a volume. Returns the number of objects that they are.
///
/// # Panics
/// If an error says something else than that the bytes are wrong.
#[must_use]
pub fn decode_all(bytes: &[u8]) -> usize {
    let flaws = [
        Superblock::decode(bytes).err(),
        Header::decode(bytes).err(),
        checkpoint::decode(bytes).err(),
        header_bytes(bytes).err(),
        checkpoint::tables_bytes(bytes).err(),
        checkpoint::decode_tables(bytes).err(),
    ];
    let objects = flaws[..3].iter().filter(|flaw| flaw.is_none()).count();
    for flaw in flaws.into_iter().flatten() {
        let is_of_bytes = matches!(flaw.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported);
        assert!(is_of_bytes, "{}", flaw.report());
    }
    objects
}
