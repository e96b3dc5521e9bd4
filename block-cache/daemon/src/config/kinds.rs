//! What kinds of device may lie on each other, and under a cache or volume.

use toml::Spanned;

use super::File;
use super::device::{Kind, RawDevice};
use super::problem::Problems;

impl File {
    fn raw(&self, name: &str) -> Option<&RawDevice> {
        self.device.iter().find(|raw| raw.name.get_ref() == name)
    }

    /// A memory's profile needs byte-addressable media.
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
                     place of \
                     `profile`",
                );
            }
        }
    }

    /// A block translation table needs byte-addressable media, and whatever is used for data needs
    /// a table over them: without it a power loss tears blocks. A cache's metadata may lie there as
    /// it is, with nothing between. Names that lead nowhere are told of elsewhere.
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
                     are \
                     atomic",
                );
            }
        }
        self.warn_of_sync_over_transit(problems);
        self.refuse_remote_caches(problems);
        self.refuse_transit_over_transit(problems);
        for (name, user) in self.data_uses() {
            if let Some(raw) = self.torn(name.get_ref()) {
                problems.add(
                    &name.span(),
                    format!(
                        "{user} would lie on device {raw:?} of kind pmem, which is atomic by 8 \
                         bytes: a power \
                         loss tears blocks"
                    ),
                    format!(
                        "put a table over it ([[device]] with kind = \"btt\" and on = {raw:?}; \
                         make it with \
                         `forebay format --btt PATH`), and use that"
                    ),
                );
            }
        }
    }

    /// What a `sync` cache writes has to be on media at once, so that nothing of it passes through
    /// slots.
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
                        "durability = \"sync\" has every write wait for what is under the transit \
                         cache \
                         {:?}, which makes nothing faster then",
                        name.get_ref()
                    ),
                );
            }
        }
    }

    /// What a network holds can be used by others, and goes away: a cache has its devices to
    /// itself.
    fn refuse_remote_caches(&self, problems: &mut Problems<'_>) {
        let Some(cache) = &self.cache else { return };
        for name in [Some(&cache.data), cache.metadata.as_ref()] {
            let Some(name) = name else { continue };
            let mut under = self.raw(name.get_ref());
            // No more steps than devices, should they lie on each other in a circle.
            for _ in 0..self.device.len() {
                let Some(on) = under.and_then(RawDevice::under) else {
                    break;
                };
                under = self.raw(on.get_ref());
            }
            if under.is_some_and(|raw| raw.kind() == Kind::NvmeTcp) {
                problems.add(
                    &name.span(),
                    format!(
                        "the cache would lie on device {:?}, which is another machine's",
                        name.get_ref()
                    ),
                    "let the cache lie on a device of this machine; one of kind nvme-tcp can be \
                     the `backing` \
                     of a volume",
                );
            }
        }
    }

    /// Slots are found again by the medium that is under them: of two caches over one they would be
    /// the same.
    fn refuse_transit_over_transit(&self, problems: &mut Problems<'_>) {
        for device in self.device.iter().filter(|raw| raw.kind() == Kind::Transit) {
            let mut under = device.under();
            // No more steps than devices, should they lie on each other in a circle.
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

    /// The byte-addressable device at the bottom of `name`, if no table lies between.
    fn torn<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let mut name = name;
        // No more steps than devices, should they lie on each other in a circle.
        for _ in 0..self.device.len() {
            let raw = self.raw(name)?;
            match raw.kind() {
                Kind::Pmem => return Some(name),
                Kind::Emulate | Kind::Transit => name = raw.under()?.get_ref(),
                Kind::File | Kind::NvmeTcp | Kind::Mem | Kind::Btt => return None,
            }
        }
        None
    }
}
