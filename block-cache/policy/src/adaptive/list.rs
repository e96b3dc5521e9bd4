//! Doubly linked lists through the entries of a vector.

pub(super) const NONE: u32 = u32::MAX;

/// Neighbours on a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Towards the front.
    pub(super) newer: u32,
    /// Towards the back.
    pub(super) older: u32,
}

impl Link {
    pub(super) const NONE: Self = Self {
        newer: NONE,
        older: NONE,
    };
}

/// Front and back of a list. The links are with the entries: `link` leads to them.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    pub(super) front: u32,
    pub(super) back: u32,
}

impl List {
    pub(super) const EMPTY: Self = Self {
        front: NONE,
        back: NONE,
    };

    pub(super) fn push_front<T>(
        &mut self,
        entries: &mut [T],
        id: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        *link(&mut entries[id as usize]) = Link {
            newer: NONE,
            older: self.front,
        };
        match self.front {
            NONE => self.back = id,
            front => link(&mut entries[front as usize]).newer = id,
        }
        self.front = id;
    }

    pub(super) fn push_back<T>(
        &mut self,
        entries: &mut [T],
        id: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        *link(&mut entries[id as usize]) = Link {
            newer: self.back,
            older: NONE,
        };
        match self.back {
            NONE => self.front = id,
            back => link(&mut entries[back as usize]).older = id,
        }
        self.back = id;
    }

    pub(super) fn remove<T>(
        &mut self,
        entries: &mut [T],
        id: u32,
        link: impl Fn(&mut T) -> &mut Link,
    ) {
        let Link { newer, older } = std::mem::replace(link(&mut entries[id as usize]), Link::NONE);
        match newer {
            NONE => self.front = older,
            newer => link(&mut entries[newer as usize]).older = older,
        }
        match older {
            NONE => self.back = newer,
            older => link(&mut entries[older as usize]).newer = newer,
        }
    }

    #[inline]
    pub(super) fn move_to_front<T>(
        &mut self,
        entries: &mut [T],
        id: u32,
        link: impl Fn(&mut T) -> &mut Link + Copy,
    ) {
        if self.front != id {
            self.remove(entries, id, link);
            self.push_front(entries, id, link);
        }
    }
}
