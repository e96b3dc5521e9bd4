//! Handle of a volume for any thread.

use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, DeviceInfo, Error, Request, Result};
use forebay_io::rt::Remote;

use crate::answer::RemoteAnswer;
use crate::blocking::Slot;
use crate::forward::ForwardDevice;
use crate::local::{self, Volume};
use crate::shared::Shared;
use crate::stats::VolumeStats;

/// Handle of a volume for any thread; see the [crate documentation](crate).
#[derive(Clone)]
pub struct VolumeHandle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for VolumeHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VolumeHandle")
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl Volume {
    /// Returns a handle for front-ends.
    #[must_use]
    pub fn handle(&self) -> VolumeHandle {
        VolumeHandle {
            shared: Arc::clone(self.shared()),
        }
    }
}

impl VolumeHandle {
    /// Returns the volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns whether writes are refused.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.shared.read_only
    }

    /// Returns the properties of the volume: those of its device under the volume's name, always
    /// with FUA. The size is the current one.
    #[must_use]
    pub fn info(&self) -> DeviceInfo {
        self.shared.info()
    }

    /// Opens the volume as a device of the calling reactor. If the volume is gone, every request
    /// fails with `ShuttingDown`.
    ///
    /// On a reactor other than the engine reactor, requests complete only while that reactor runs.
    #[must_use]
    pub fn open(&self) -> Rc<dyn BlockDevice> {
        if self.shared.engine.is_current()
            && let Some(device) = local::open(self.shared.id)
        {
            return device;
        }
        Rc::new(ForwardDevice::new(Arc::clone(&self.shared)))
    }

    /// Returns the engine reactor, for a foreign thread that runs tasks there.
    #[must_use]
    pub fn engine(&self) -> &Remote {
        &self.shared.engine
    }

    /// Returns the counters since the creation of the volume.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        self.shared.counters.snapshot()
    }

    /// Runs a request from a thread without a reactor, and waits for its end. The buffer belongs to
    /// the request until then.
    ///
    /// # Errors
    /// Errors of the volume; `ShuttingDown` if it is gone.
    ///
    /// # Panics
    /// If the thread is the engine reactor's own, which would wait for itself.
    pub fn call_blocking(&self, request: Request) -> Result<(), Error> {
        assert!(
            !self.shared.engine.is_current(),
            "a blocking call on the volume's own reactor"
        );
        let slot = Slot::here();
        self.shared
            .forward(request, RemoteAnswer::thread(Arc::clone(&slot)));
        slot.wait()
    }
}
