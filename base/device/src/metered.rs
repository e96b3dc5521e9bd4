//! Measures the CPU time of a device's own code; see [`forebay_io::rt::meter`].

use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, Request};
use forebay_io::rt::meter::{self, Account};

/// A device whose code is charged to an account.
pub struct Metered {
    inner: Rc<dyn BlockDevice>,
    account: Account,
}

impl Metered {
    /// Charges the code of `inner`, and of the tasks that it spawns, to `account`.
    #[must_use]
    pub fn wrap(inner: Rc<dyn BlockDevice>, account: Account) -> Rc<dyn BlockDevice> {
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

    fn inner(&self) -> Option<&dyn BlockDevice> {
        Some(&*self.inner)
    }
}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered")
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}
