//! Takes the time that a device's own code takes; see [`forebay_io::rt::meter`].

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Request};
use forebay_io::rt::meter::{self, Account};

/// A device whose code runs on an account.
pub struct Metered {
    inner: Rc<dyn BlockDevice>,
    account: Account,
}

impl Metered {
    /// Has the code of `inner`, and of the tasks that it spawns, charged to `account`.
    #[must_use]
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are handed around as trait objects"
    )]
    pub fn new(inner: Rc<dyn BlockDevice>, account: Account) -> Rc<dyn BlockDevice> {
        Rc::new(Self { inner, account })
    }
}

impl BlockDevice for Metered {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        meter::within(self.account, || self.inner.submit(request, done));
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.inner.holes(range)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.inner.allocated_bytes()
    }
}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered")
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}
