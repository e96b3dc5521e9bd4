//! Names of a trace's volumes.

use std::collections::HashMap;

/// Most volumes in a trace. Published traces have a few thousand, and a damaged file must not fill
/// the memory with names.
pub const MAX_VOLUMES: usize = 1 << 16;

/// Longest name of a volume, bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// The volumes of a trace, numbered from zero in order of first appearance.
#[derive(Clone, Debug, Default)]
pub struct Volumes {
    names: Vec<String>,
    numbers: HashMap<Box<[u8]>, u32>,
    /// Last lookup: in most traces the next request is of the same volume.
    last: Vec<u8>,
    last_number: u32,
}

impl Volumes {
    /// Returns an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the names, by number.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the name of volume `number`; an empty one if there is no such volume.
    #[must_use]
    pub fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("", String::as_str)
    }

    /// Returns the number of the volume with this name; adds the volume if it is new. Returns
    /// `None` if there are too many ([`MAX_VOLUMES`]) or the name is too long ([`MAX_NAME_BYTES`]).
    pub fn number(&mut self, name: &str) -> Option<u32> {
        self.number_of(name.as_bytes(), || name.to_owned())
    }

    /// Like [`Volumes::number`], by the bytes that identify the volume in a record.
    #[inline]
    pub(crate) fn number_of(&mut self, key: &[u8], name: impl FnOnce() -> String) -> Option<u32> {
        if key == self.last && !self.names.is_empty() {
            return Some(self.last_number);
        }
        let number = match self.numbers.get(key) {
            Some(number) => *number,
            None => self.add(key, name)?,
        };
        self.last.clear();
        self.last.extend_from_slice(key);
        self.last_number = number;
        Some(number)
    }

    #[cold]
    fn add(&mut self, key: &[u8], name: impl FnOnce() -> String) -> Option<u32> {
        if self.names.len() == MAX_VOLUMES || key.len() > MAX_NAME_BYTES {
            return None;
        }
        // Replacing invalid UTF-8 may have made it longer.
        let name = name();
        if name.len() > MAX_NAME_BYTES {
            return None;
        }
        let number = u32::try_from(self.names.len()).ok()?;
        self.names.push(name);
        self.numbers.insert(key.into(), number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_first_appearance() {
        let mut volumes = Volumes::new();
        let names = ["b", "a", "b", "c", "a"];
        let numbers: Vec<_> = names.iter().map(|name| volumes.number(name)).collect();
        assert_eq!(numbers, [Some(0), Some(1), Some(0), Some(2), Some(1)]);
        assert_eq!(volumes.names(), ["b", "a", "c"]);
        assert_eq!((volumes.name(2), volumes.name(3)), ("c", ""));
    }

    #[test]
    fn the_empty_name_is_a_name() {
        let mut volumes = Volumes::new();
        assert_eq!(volumes.number(""), Some(0));
        assert_eq!(volumes.names(), [""]);
    }

    #[test]
    fn too_much_is_refused() {
        let mut volumes = Volumes::new();
        assert_eq!(volumes.number(&"x".repeat(MAX_NAME_BYTES + 1)), None);
        for number in 0..MAX_VOLUMES {
            assert!(volumes.number(&number.to_string()).is_some());
        }
        assert_eq!(volumes.number("one more"), None);
        assert_eq!(volumes.number("17"), Some(17));
    }
}
