//! Verifies volumes in object storage.

use forebay_block::{Context as _, Result};
use forebay_device::rbd::Access;
use forebay_io::{Engine, Reactor};
use forebay_terminal::size::{human_bytes, human_count};
use serde_json::{Value, json};

use crate::config::{Config, DeviceKind};
use crate::stack::connect;

/// Result for one device.
pub(super) struct VerifiedDevice {
    name: String,
    objects: u64,
    bytes: u64,
}

impl VerifiedDevice {
    /// Returns the result as a line of text.
    pub(super) fn line(&self) -> String {
        format!(
            "device {:?}: {} with {} verified\n",
            self.name,
            human_count(self.objects, "object"),
            human_bytes(self.bytes)
        )
    }

    /// Returns the result as JSON.
    pub(super) fn as_json(&self) -> Value {
        json!({ "device": self.name, "objects": self.objects, "bytes": self.bytes })
    }
}

/// Returns whether a volume of the configuration is in object storage.
pub(super) fn has_objects(config: &Config) -> bool {
    let leaves = config
        .volumes
        .iter()
        .map(|it| config.stack(&it.backing).pop());
    leaves
        .flatten()
        .any(|leaf| matches!(leaf.kind, DeviceKind::Object(_)))
}

/// Reads all objects under the volumes of a configuration that no daemon serves, and verifies their
/// data. Omits a volume that the start creates.
///
/// # Errors
/// `Lost` if an object is missing or damaged, with the place in the configuration. The error of the
/// store.
pub(super) fn verify_objects(config: &Config) -> Result<Vec<VerifiedDevice>> {
    Reactor::new(Engine::Auto)?.run(verify(config.clone()))
}

async fn verify(config: Config) -> Result<Vec<VerifiedDevice>> {
    let mut verified = Vec::new();
    for volume in &config.volumes {
        let Some(leaf) = config.stack(&volume.backing).pop() else {
            continue;
        };
        if !matches!(leaf.kind, DeviceKind::Object(_)) {
            continue;
        }
        let place = || format!("{}: device {:?}", config.place(leaf.line), leaf.name);
        let Some(connected) = connect(&leaf.kind, Access::Look).await.context(place)? else {
            continue;
        };
        if let Some(found) = connected.verify().await.context(place)? {
            verified.push(VerifiedDevice {
                name: leaf.name.clone(),
                objects: found.objects,
                bytes: found.bytes,
            });
        }
    }
    Ok(verified)
}
