//! The addresses of the exports, in words, as in the status.

/// Addresses of the exports, in the order in which they were reached.
#[derive(Clone, Debug, Default)]
pub(super) struct Addresses(Vec<Entry>);

/// An address.
#[derive(Clone, Debug)]
struct Entry {
    /// The volume that is exported there; `None` for an address of the daemon itself.
    volume: Option<String>,
    text: String,
    /// Description of the address without a volume, if the daemon holds it until its end.
    held: Option<String>,
}

impl Addresses {
    /// Adds the export of a volume that ends with the volume.
    pub(super) fn add(&mut self, volume: &str, text: String) {
        self.0.push(Entry {
            volume: Some(volume.to_owned()),
            text,
            held: None,
        });
    }

    /// Adds the export of a volume at an address that the daemon holds until its end. Other
    /// volumes may be exported there, too. `protocol` begins the line that remains without them.
    pub(super) fn add_held(&mut self, volume: &str, text: String, protocol: &str, at: &str) {
        self.0.push(Entry {
            volume: Some(volume.to_owned()),
            text,
            held: Some(format!("{protocol}no volume at {at}")),
        });
    }

    /// Adds an address of the daemon itself.
    pub(super) fn add_own(&mut self, text: String) {
        self.0.push(Entry {
            volume: None,
            text,
            held: None,
        });
    }

    /// Removes the exports of a volume. An address that the daemon still holds stays, without a
    /// volume.
    pub(super) fn withdraw(&mut self, volume: &str) {
        let all = std::mem::take(&mut self.0);
        let is_left = |entry: &&Entry| entry.volume.as_deref() != Some(volume);
        let others = all.iter().filter(is_left);
        let used: Vec<_> = others.filter_map(|entry| entry.held.clone()).collect();
        for entry in all {
            if is_left(&&entry) {
                self.0.push(entry);
            } else if let Some(text) = entry.held.filter(|text| !used.contains(text)) {
                self.add_own(text);
            }
        }
    }

    /// Returns the addresses in words.
    pub(super) fn lines(&self) -> Vec<String> {
        self.0.iter().map(|entry| entry.text.clone()).collect()
    }
}
