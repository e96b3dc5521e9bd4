//! A store in memory, for tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Range;

use bytes::Bytes;
use forebay_block::{Error, ErrorKind};

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
