//! Lists of slots, linked by number: a slot is in one list of a set of lists, or in none.

/// No slot.
pub const NONE: u32 = u32::MAX;

/// The neighbours of each slot.
#[derive(Debug)]
pub struct Links(Box<[Link]>);

#[derive(Clone, Copy, Debug)]
struct Link {
    previous: u32,
    next: u32,
}

/// Memory of a slot in each [`Links`], in bytes.
pub const LINK_BYTES: usize = size_of::<Link>();

/// One list.
#[derive(Clone, Copy, Debug)]
pub struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl Links {
    /// The links of `slots` slots, in no list.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let alone = Link {
            previous: NONE,
            next: NONE,
        };
        Self(vec![alone; slots].into())
    }

    /// The slot behind this one.
    pub(crate) fn next(&self, slot: u32) -> Option<u32> {
        some(self.0[slot as usize].next)
    }
}

const fn some(slot: u32) -> Option<u32> {
    if slot == NONE { None } else { Some(slot) }
}

impl Default for List {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
            len: 0,
        }
    }
}

impl List {
    /// The first slot.
    #[must_use]
    pub const fn front(&self) -> Option<u32> {
        some(self.head)
    }

    /// Number of slots.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there is no slot.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `slot` at the end.
    pub fn push_back(&mut self, links: &mut Links, slot: u32) {
        self.insert(links, slot, NONE);
    }

    /// Puts `slot` in front of `before`; at the end if that is none.
    pub fn insert(&mut self, links: &mut Links, slot: u32, before: u32) {
        let previous = match some(before) {
            Some(before) => links.0[before as usize].previous,
            None => self.tail,
        };
        links.0[slot as usize] = Link {
            previous,
            next: before,
        };
        self.join(links, previous, slot);
        self.join(links, slot, before);
        self.len += 1;
    }

    /// Takes out a slot that is in this list.
    pub fn remove(&mut self, links: &mut Links, slot: u32) {
        let Link { previous, next } = links.0[slot as usize];
        self.join(links, previous, next);
        self.len -= 1;
    }

    /// Puts `new` where `old` is, which leaves.
    pub(crate) fn replace(&mut self, links: &mut Links, old: u32, new: u32) {
        let next = links.0[old as usize].next;
        self.remove(links, old);
        self.insert(links, new, next);
    }

    /// Makes two slots neighbours; none stands for the end of the list.
    fn join(&mut self, links: &mut Links, left: u32, right: u32) {
        match some(left) {
            Some(left) => links.0[left as usize].next = right,
            None => self.head = right,
        }
        match some(right) {
            Some(right) => links.0[right as usize].previous = left,
            None => self.tail = left,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(list: &List, links: &Links) -> Vec<u32> {
        let all = std::iter::successors(list.front(), |slot| links.next(*slot));
        let all: Vec<u32> = all.collect();
        assert_eq!(all.len(), list.len());
        all
    }

    #[test]
    fn slots_come_and_go_at_every_place() {
        let mut links = Links::new(8);
        let mut list = List::default();
        for slot in 0..4 {
            list.push_back(&mut links, slot);
        }
        list.insert(&mut links, 4, 0);
        list.insert(&mut links, 5, 2);
        assert_eq!(slots(&list, &links), [4, 0, 1, 5, 2, 3]);
        list.replace(&mut links, 3, 6);
        list.replace(&mut links, 4, 7);
        assert_eq!(slots(&list, &links), [7, 0, 1, 5, 2, 6]);
        for slot in [7, 6, 1, 0, 5, 2] {
            list.remove(&mut links, slot);
        }
        assert!(slots(&list, &links).is_empty());
        list.push_back(&mut links, 3);
        assert_eq!(slots(&list, &links), [3]);
    }
}
