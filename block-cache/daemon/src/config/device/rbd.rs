//! The keys of an image of a Ceph cluster.

use std::path::Path;

use forebay_device::rbd::Address;
use toml::Spanned;

use super::RawDevice;
use crate::config::problem::Problems;

/// Configuration of a cluster where Ceph's packages have it.
const CONF: &str = "/etc/ceph/ceph.conf";

impl RawDevice {
    /// Returns the place of the image. Returns `None` if a key is missing or wrong.
    pub(super) fn resolve_image(&self, problems: &mut Problems<'_>) -> Option<Address> {
        let name = self.name.get_ref();
        for (key, value) in [("pool", &self.pool), ("image", &self.image)] {
            if value.is_none() {
                problems.add(
                    &self.name.span(),
                    format!("device {name:?} of kind rbd has no `{key}`"),
                    format!("add {key} = \"...\", as `rbd ls` and `ceph osd pool ls` have it"),
                );
            }
        }
        let keys = [&self.pool, &self.image, &self.snapshot, &self.client];
        let mut is_right = true;
        for value in keys.into_iter().flatten() {
            let text = value.get_ref();
            if text.is_empty() || text.contains(['/', '@', '\0']) {
                is_right = false;
                problems.add(
                    &value.span(),
                    format!("{text:?} names no pool, image, snapshot or client"),
                    "write each name with its own key: `pool`, `image`, `snapshot` and `client`",
                );
            }
        }
        let copied = |value: &Spanned<String>| value.get_ref().clone();
        let client = self.client.as_ref().map_or("admin".to_owned(), copied);
        let conf = self.conf.as_ref();
        let conf = conf.map_or(Path::new(CONF), |conf| conf.get_ref().as_path());
        is_right.then_some(Address {
            pool: copied(self.pool.as_ref()?),
            image: copied(self.image.as_ref()?),
            snapshot: self.snapshot.as_ref().map(copied),
            client: client.strip_prefix("client.").unwrap_or(&client).to_owned(),
            conf: problems.base().join(conf),
        })
    }
}
