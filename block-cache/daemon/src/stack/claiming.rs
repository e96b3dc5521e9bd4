//! Claims of volumes in object storage: a start becomes the writer of a volume only when nothing
//! may refuse the start any more. Until then another daemon may serve the volume.

use forebay_block::Result;
use forebay_object::{Claimant, new_id};
use forebay_terminal::size::human_duration;

use super::object::OpenObjects;
use crate::state::Record;
use crate::state::decide::Claim;

/// A claim that a start is going to make.
pub(super) struct Claiming {
    objects: OpenObjects,
    /// Last writer of the volume.
    last: Option<Claimant>,
    pub(super) claim: Claim,
}

impl Claiming {
    /// Returns the claim that a backing device needs. `others` are other volumes that were served
    /// from the device. Returns `None` for a device that is not in object storage, or that takes no
    /// writes.
    ///
    /// # Errors
    /// The error of the store.
    pub(super) async fn of(
        objects: Option<OpenObjects>,
        others: &[(String, Record)],
    ) -> Result<Option<Self>> {
        let Some(objects) = objects.filter(|objects| objects.is_served) else {
            return Ok(None);
        };
        let last = objects.volume.last_writer().await?;
        let claim = Claim::new(last.as_ref().map(|last| last.id), new_id(), others);
        Ok(Some(Self {
            objects,
            last,
            claim,
        }))
    }

    /// Becomes the writer. The state directory has the writer by then.
    ///
    /// # Errors
    /// As [`forebay_object::ObjectVolume::claim`].
    pub(super) async fn carry_out(&self) -> Result<()> {
        self.objects.claim(self.claim.next).await
    }

    /// Describes the last writer, which is another daemon.
    pub(super) fn other_in_words(&self) -> String {
        let Some(Claimant { text, time, .. }) = &self.last else {
            return String::new();
        };
        let age = forebay_io::system::wall_clock().saturating_sub(*time);
        let age = human_duration(age);
        format!("another daemon, {text}, took its backing device over {age} ago")
    }
}
