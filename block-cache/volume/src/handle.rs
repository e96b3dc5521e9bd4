//! A volume as any thread may hold it.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_block::{BlockDevice, DeviceInfo, Error, ErrorKind, Request, Result};
use forebay_io::rt::Remote;

use crate::blocking::Slot;
use crate::forward::{Ask, Away, ForwardDevice};
use crate::local;
use crate::mailbox::Mailbox;
use crate::stats::{Counters, VolumeStats};

/// What all threads share of a volume.
pub(crate) struct Shared {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) engine: Remote,
    pub(crate) info: Mutex<DeviceInfo>,
    pub(crate) counters: Counters,
    pub(crate) inbox: Arc<Mailbox<Ask>>,
}

impl Shared {
    pub(crate) fn info(&self) -> DeviceInfo {
        self.info
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Sends a request to the engine reactor.
    pub(crate) fn ask(&self, request: Request, answer: Away) {
        let ask = Ask {
            volume: self.id,
            request,
            answer,
        };
        if let Err(refused) = self.inbox.post(ask) {
            refused.answer.refuse(ErrorKind::ShuttingDown.into());
        }
    }
}

/// A volume as any thread may hold it; see the [crate's text](crate).
#[derive(Clone)]
pub struct VolumeHandle {
    pub(crate) shared: Arc<Shared>,
}

impl std::fmt::Debug for VolumeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeHandle")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl VolumeHandle {
    /// The volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether writes are refused.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.shared.read_only
    }

    /// What the volume is: its device's properties under the volume's name, always with FUA. The
    /// size is the present one.
    #[must_use]
    pub fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    /// The volume as a device of the calling reactor. Where the volume is gone, every request ends
    /// with `ShuttingDown`.
    ///
    /// On a reactor other than the engine's, each request needs that reactor to be the running one.
    #[must_use]
    pub fn open(&self) -> Rc<dyn BlockDevice> {
        if self.shared.engine.is_current()
            && let Some(device) = local::open(self.shared.id)
        {
            return device;
        }
        Rc::new(ForwardDevice::new(Arc::clone(&self.shared)))
    }

    /// The engine reactor, for a foreign thread that brings work of its own to it.
    #[must_use]
    pub fn engine(&self) -> &Remote {
        &self.shared.engine
    }

    /// Counters since the volume was made.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        self.shared.counters.snapshot()
    }

    /// Runs a request from a thread that runs no reactor, and waits for its end. The buffer belongs
    /// to the request until then.
    ///
    /// # Errors
    /// What the volume answers; `ShuttingDown` if it is gone.
    ///
    /// # Panics
    /// On the engine reactor's own thread, which would wait for itself.
    pub fn call_blocking(&self, request: Request) -> Result<(), Error> {
        assert!(
            !self.shared.engine.is_current(),
            "a blocking call on the volume's own reactor"
        );
        let slot = Slot::here();
        self.shared.ask(request, Away::thread(Arc::clone(&slot)));
        slot.wait()
    }
}
