//! Devices of a stack, with their faults and presence while they are in use.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Result};
use forebay_device::counted::Counters;
use forebay_io::file::Faults;
use forebay_transit::Transit;

use super::fence::Failure;
use super::object::OpenObjects;
use super::presence::{Absence, Presence};
use super::transit::OpenTransit;
use crate::state::append_help;
use crate::status::{DeviceStatus, ObjectStatus};

/// An open device and its request statistics.
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) role: &'static str,
    /// Description of the device.
    pub(super) what: String,
    pub(super) device: Rc<dyn BlockDevice>,
    pub(super) counters: Rc<Counters>,
    /// Faults of the file or the remote device under it; memory has none.
    pub(super) faults: Rc<Faults>,
    /// File under it, if it is one.
    pub(super) presence: Option<Presence>,
    /// Volume in object storage under it, if it is one.
    pub(super) objects: Option<OpenObjects>,
    /// Whether another machine has taken it over, if that is possible.
    pub(super) failure: Option<Failure>,
    /// Transit caches over it, from the bottom up.
    pub(super) transits: Vec<OpenTransit>,
}

impl Watched {
    /// Returns whether one of its transit caches holds data that must not be evicted to the device
    /// yet.
    pub(super) fn is_withheld(&self) -> bool {
        self.transits.iter().any(OpenTransit::is_withheld)
    }

    /// Describes data of an earlier process in its transit caches, as older than data of the
    /// device, with the remedy to give it up.
    pub(super) fn withheld_in_words(&self) -> Option<String> {
        let mut withheld = self.transits.iter();
        withheld.find_map(OpenTransit::withheld_in_words)
    }

    /// Checks that the file under it was not removed, before data there is reported as safe.
    ///
    /// # Errors
    /// `Lost` if the file was removed.
    pub(super) fn check_not_removed(&self) -> Result<()> {
        // This call detects the removal.
        let _ = self.device.info();
        let what = || format!("device {:?} ({})", self.name, self.role);
        if let Some(error) = self.faults.removed() {
            return Err(Error::new(
                error.kind(),
                format!("{}: {}{}", what(), error.report(), self.after_removal()),
            ));
        }
        match self.absence().filter(|absence| absence.is_removed) {
            Some(absence) => Err(Error::new(
                ErrorKind::Lost,
                format!("{}{}", absence.in_words(&what()), self.remedy(&absence)),
            )),
            None => Ok(()),
        }
    }

    /// Returns whether a file of the cache was removed. Closing the cache must not change such a
    /// file: a copy made of it would be an earlier state.
    pub(super) fn is_removed_cache(&self) -> bool {
        self.role != "backing" && self.check_not_removed().is_err()
    }

    fn absence(&self) -> Option<Absence> {
        self.presence.as_ref().and_then(Presence::known_absence)
    }

    /// Describes its failure for good, or the absence of the file under it from its path, with the
    /// remedy. A removed file among its faults is reported there instead.
    pub(super) fn trouble(&self) -> Option<String> {
        if let Some(error) = self.failure.as_ref().and_then(|failure| failure()) {
            let error = error.report();
            return Some(format!("device {:?} ({}): {error}", self.name, self.role));
        }
        let absence = self.absence()?;
        if self.faults.removed().is_some() {
            return None;
        }
        let what = format!("device {:?} ({})", self.name, self.role);
        Some(absence.in_words(&what) + &self.remedy(&absence))
    }

    fn remedy(&self, absence: &Absence) -> String {
        let (from, path) = (absence.copy_from.display(), absence.path.display());
        match absence.is_removed {
            true => format!(
                "\n    help: copy it while the daemon runs: cp --sparse=always {from} NEW{}",
                self.after_removal()
            ),
            false => format!(
                "\n    help: move it back to {path}, or set `path` of the device to its new path \
                 before the next start; the daemon continues to use it (it is {from})"
            ),
        }
    }

    /// Returns the remedy for the copy of a removed file.
    fn after_removal(&self) -> &'static str {
        match self.role {
            "backing" => "",
            _ => {
                ", with no client connected; stop the daemon, put the copy at the path, and start \
                 once with --moved-cache"
            }
        }
    }

    /// Returns statistics of the volume in object storage under it, if there is one.
    pub(super) fn object_status(&self) -> Option<ObjectStatus> {
        Some(self.objects.as_ref()?.status(&self.name))
    }

    /// Makes a volume in object storage durable within `limit`, and ends its requests.
    ///
    /// # Errors
    /// The error of the volume.
    pub(super) async fn close_objects(&self, limit: Duration) -> Result<()> {
        match &self.objects {
            Some(objects) => objects
                .volume
                .close_within(limit)
                .await
                .context(|| format!("closing device {:?} ({})", self.name, self.what)),
            None => Ok(()),
        }
    }

    pub(super) fn status(&self) -> DeviceStatus {
        // First: the call may find that the device is gone, which is then the last fault.
        let size_bytes = self.device.info().size_bytes;
        let counts = self.counters.get();
        let last = self.faults.last();
        DeviceStatus {
            name: self.name.clone(),
            what: self.what.clone(),
            role: self.role.into(),
            size_bytes,
            reads: counts.reads,
            read_bytes: counts.read_bytes,
            writes: counts.writes,
            write_bytes: counts.write_bytes,
            flushes: counts.flushes,
            fua_writes: counts.fua_writes,
            discard_bytes: counts.discard_bytes,
            write_zeroes_bytes: counts.write_zeroes_bytes,
            errors: self.faults.count(),
            last_error: last.map(|error| match error.kind() {
                ErrorKind::Lost if self.faults.removed().is_some() => {
                    error.report() + self.after_removal()
                }
                ErrorKind::NoSpace => append_help(error.report(), "make room on its file system"),
                _ => error.report(),
            }),
        }
    }
}

/// Returns the transit caches of devices.
pub(super) fn transit_caches(devices: &[Watched]) -> Vec<Rc<Transit>> {
    let caches = devices.iter().flat_map(|watched| &watched.transits);
    caches.map(OpenTransit::cache).collect()
}
