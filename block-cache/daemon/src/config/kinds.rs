//! Checks the kinds of devices that are stacked on each other, and used by a cache or volume.

use toml::Spanned;

use super::File;
use super::device::{Kind, RawDevice};
use super::problem::Problems;

impl File {
    fn raw(&self, name: &str) -> Option<&RawDevice> {
        self.device.iter().find(|raw| raw.name.get_ref() == name)
    }

    /// Checks that the profile of a memory is used over byte-addressable media.
    fn check_memory_profiles(&self, problems: &mut Problems<'_>) {
        let emulated = |raw: &&RawDevice| raw.is_memory() && raw.kind() == Kind::Emulate;
        for device in self.device.iter().filter(emulated) {
            let Some(on) = device.under() else { continue };
            if let Some(under) = self
                .raw(on.get_ref())
                .filter(|raw| raw.kind() != Kind::Pmem)
            {
                problems.add(
                    &on.span(),
                    format!(
                        "device {:?} with the profile of a memory lies on device {:?} of kind {}",
                        device.name.get_ref(),
                        on.get_ref(),
                        under.kind().as_str()
                    ),
                    "let `on` name a device of kind pmem, or write `latency` and `bandwidth` in \
                     place of `profile`",
                );
            }
        }
    }

    /// Checks that a block translation table has byte-addressable media under it. Such media need a
    /// table if used for data: without it a power loss tears blocks. A cache's metadata needs no
    /// table. Unknown names are reported elsewhere.
    pub(super) fn check_kinds(&self, problems: &mut Problems<'_>) {
        self.check_memory_profiles(problems);
        for device in self.device.iter().filter(|raw| raw.kind() == Kind::Btt) {
            let Some(on) = device.under() else { continue };
            let Some(under) = self.raw(on.get_ref()) else {
                continue;
            };
            if !under.is_memory() {
                problems.add(
                    &on.span(),
                    format!(
                        "device {:?} of kind btt lies on device {:?} of kind {}",
                        device.name.get_ref(),
                        on.get_ref(),
                        under.kind().as_str()
                    ),
                    "let `on` name a device of kind pmem; other kinds need no table: their blocks \
                     are atomic",
                );
            }
        }
        self.warn_of_sync_over_transit(problems);
        self.refuse_remote_caches(problems);
        self.refuse_writes_to_snapshots(problems);
        self.refuse_transit_over_transit(problems);
        for (name, user) in self.data_uses() {
            if let Some(raw) = self.torn(name.get_ref()) {
                problems.add(
                    &name.span(),
                    format!(
                        "{user} would be on device {raw:?} of kind pmem: a power loss tears blocks"
                    ),
                    format!(
                        "put a table over it ([[device]] with kind = \"btt\" and on = {raw:?}; \
                         make it with `forebay format --btt PATH`), and use that"
                    ),
                );
            }
        }
    }

    /// Warns of a transit cache under a `sync` cache. Writes of such a cache must reach the medium
    /// at once, so that none uses the slots.
    fn warn_of_sync_over_transit(&self, problems: &mut Problems<'_>) {
        let Some(cache) = self.cache.as_ref().filter(|cache| cache.is_sync()) else {
            return;
        };
        for name in [Some(&cache.data), cache.metadata.as_ref()] {
            let transit = name
                .and_then(|name| self.raw(name.get_ref()))
                .filter(|raw| raw.kind() == Kind::Transit);
            if let (Some(name), Some(_)) = (name, transit) {
                problems.warn(
                    &name.span(),
                    &format!(
                        "durability = \"sync\" makes every write wait for the device under the \
                         transit cache {:?}, which saves no time then",
                        name.get_ref()
                    ),
                );
            }
        }
    }

    /// Refuses devices of a network for a cache: others can use them, and they can disappear. A
    /// cache needs exclusive devices.
    fn refuse_remote_caches(&self, problems: &mut Problems<'_>) {
        let Some(cache) = &self.cache else { return };
        for name in [Some(&cache.data), cache.metadata.as_ref()] {
            let Some(name) = name else { continue };
            let mut under = self.raw(name.get_ref());
            // Bounded by the number of devices, in case they form a circle.
            for _ in 0..self.device.len() {
                let Some(on) = under.and_then(RawDevice::under) else {
                    break;
                };
                under = self.raw(on.get_ref());
            }
            if under.is_some_and(|raw| raw.kind().is_remote()) {
                problems.add(
                    &name.span(),
                    format!(
                        "the cache would lie on device {:?}, which is another machine's",
                        name.get_ref()
                    ),
                    "let the cache lie on a device of this machine; one of kind nvme-tcp, nbd, rbd \
                     or object can be the `backing` of a volume",
                );
            }
        }
    }

    /// Refuses volumes that clients may write to over a snapshot.
    fn refuse_writes_to_snapshots(&self, problems: &mut Problems<'_>) {
        for volume in &self.volume {
            let mut under = self.raw(volume.backing.get_ref());
            // Bounded by the number of devices, in case they form a circle.
            for _ in 0..self.device.len() {
                let Some(on) = under.and_then(RawDevice::under) else {
                    break;
                };
                under = self.raw(on.get_ref());
            }
            let is_snapshot = under.is_some_and(|raw| raw.snapshot.is_some());
            if is_snapshot && volume.read_only != Some(true) {
                problems.add(
                    &volume.backing.span(),
                    format!(
                        "volume {:?} lies on a snapshot, which takes no writes",
                        volume.name.get_ref()
                    ),
                    "add read_only = true to the volume, or remove `snapshot` from the device",
                );
            }
        }
    }

    /// Refuses a transit cache over another one. Slots are named after the medium under them, so
    /// both caches would have the same slots.
    fn refuse_transit_over_transit(&self, problems: &mut Problems<'_>) {
        for device in self.device.iter().filter(|raw| raw.kind() == Kind::Transit) {
            let mut under = device.under();
            // Bounded by the number of devices, in case they form a circle.
            for _ in 0..self.device.len() {
                let Some(raw) = under.and_then(|on| self.raw(on.get_ref())) else {
                    break;
                };
                if let (Kind::Transit, Some(on)) = (raw.kind(), device.under()) {
                    problems.add(
                        &on.span(),
                        "a transit cache lies over another one".to_owned(),
                        "give the medium one of them, with the capacity of both",
                    );
                    break;
                }
                under = raw.under();
            }
        }
    }

    fn data_uses(&self) -> Vec<(&Spanned<String>, String)> {
        let mut uses: Vec<(&Spanned<String>, String)> = Vec::new();
        if let Some(cache) = &self.cache {
            uses.push((&cache.data, "the cache's data".into()));
            let in_lines = |name: &str| self.raw(name).is_some_and(RawDevice::is_memory);
            let metadata = (cache.metadata.as_ref()).filter(|name| !in_lines(name.get_ref()));
            uses.extend(metadata.map(|name| (name, "the cache's metadata".into())));
        }
        for volume in &self.volume {
            let user = format!("volume {:?}", volume.name.get_ref());
            uses.push((&volume.backing, user));
        }
        uses
    }

    /// Returns the byte-addressable device at the bottom of `name` if no table is in between.
    fn torn<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let mut name = name;
        // Bounded by the number of devices, in case they form a circle.
        for _ in 0..self.device.len() {
            let raw = self.raw(name)?;
            match raw.kind() {
                Kind::Pmem => return Some(name),
                Kind::Emulate | Kind::Transit => name = raw.under()?.get_ref(),
                Kind::File | Kind::NvmeTcp | Kind::Nbd | Kind::Rbd | Kind::Object => return None,
                Kind::Mem | Kind::Btt => return None,
            }
        }
        None
    }
}
