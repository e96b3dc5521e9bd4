//! Measures the CPU time of a device's own code; see [`forebay_io::rt::meter`].

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Request, Result};
use forebay_io::rt::meter::{self, Account};

/// A device whose code is charged to an account.
pub struct Metered {
    inner: Rc<dyn BlockDevice>,
    account: Account,
}

impl Metered {
    /// Charges the code of `inner`, and of the tasks that it spawns, to `account`.
    #[must_use]
    #[expect(
        clippy::new_ret_no_self,
        reason = "devices are passed as trait objects"
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

    fn keep_size(&self, least_bytes: u64) -> Result<bool> {
        self.inner.keep_size(least_bytes)
    }
}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered")
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}
