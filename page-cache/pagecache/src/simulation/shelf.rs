//! The simulated store.

use std::cell::RefCell;
use std::collections::BTreeMap;

use forebay_block::{Error, ErrorKind};

use super::model::initial;
use super::{PAGE_BYTES, Words, to_bytes, to_words};
use crate::message::PageId;
use crate::store::Store;

/// The store. Unwritten pages hold the content of [`initial`].
#[derive(Debug, Default)]
pub(super) struct Shelf {
    pages: RefCell<BTreeMap<PageId, Words>>,
}

impl Shelf {
    pub(super) fn words(&self, page: PageId) -> Words {
        let pages = self.pages.borrow();
        pages.get(&page).copied().unwrap_or_else(|| initial(page))
    }
}

impl Store for Shelf {
    fn read_pages(&self, page: PageId, into: &mut [u8]) -> Result<(), Error> {
        into.copy_from_slice(&to_bytes(&self.words(page)));
        Ok(())
    }

    fn write_pages(&self, page: PageId, from: &[u8]) -> Result<(), Error> {
        if from.len() != PAGE_BYTES {
            return Err(Error::from(ErrorKind::InvalidInput));
        }
        self.pages.borrow_mut().insert(page, to_words(from));
        Ok(())
    }

    fn sync(&self, _: u64) -> Result<(), Error> {
        Ok(())
    }
}
