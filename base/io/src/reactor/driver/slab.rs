//! Operations in flight. Each owns the memory and descriptors that the kernel or a worker may use,
//! until its result arrives.

use super::file::FileOp;
use super::socket::{SocketOp, SocketState};
use crate::engine::Token;

pub(crate) enum Operation {
    File(FileOp),
    Socket(SocketOp),
}

const GENERATION_MASK: u32 = u32::MAX >> 1;

struct Slot {
    generation: u32,
    operation: Option<Operation>,
}

#[derive(Default)]
pub(crate) struct Slab {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slab {
    pub(crate) fn insert(&mut self, operation: Operation) -> Token {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                operation: None,
            });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 operations")
        });
        let slot = &mut self.slots[index as usize];
        slot.operation = Some(operation);
        (u64::from(slot.generation) << 32) | u64::from(index)
    }

    /// The operation, if it is still there.
    pub(crate) fn get(&mut self, token: Token) -> Option<&mut Operation> {
        let (index, generation) = parts(token);
        self.slots
            .get_mut(index)
            .filter(|slot| slot.generation == generation)?
            .operation
            .as_mut()
    }

    pub(crate) fn take(&mut self, token: Token) -> Option<Operation> {
        let (index, generation) = parts(token);
        let slot = self
            .slots
            .get_mut(index)
            .filter(|slot| slot.generation == generation)?;
        let operation = slot.operation.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MASK;
        self.free
            .push(u32::try_from(index).expect("an index that was given out"));
        Some(operation)
    }

    /// An operation that the kernel or a worker is not done with, if there is one that has to end.
    pub(crate) fn any_in_flight(&self) -> Option<Token> {
        let index = self.slots.iter().position(|slot| match &slot.operation {
            None => false,
            Some(Operation::File(_)) => true,
            Some(Operation::Socket(socket)) => {
                !socket.left_behind && !matches!(socket.state, SocketState::Ready(_))
            }
        })?;
        let generation = self.slots[index].generation;
        Some((u64::from(generation) << 32) | index as u64)
    }
}

fn parts(token: Token) -> (usize, u32) {
    let index = usize::try_from(token & u64::from(u32::MAX)).expect("32 bits");
    (index, u32::try_from(token >> 32).expect("32 bits"))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::reactor::driver::{Driver, Hold, Socket};

    fn operation(driver: &Rc<Driver>, left_behind: bool) -> Operation {
        let file = std::fs::File::open("/dev/null").expect("/dev/null");
        Operation::Socket(SocketOp {
            socket: Socket::adopt(driver, file.into()),
            _hold: Hold::Nothing,
            accepts: false,
            left_behind,
            state: SocketState::Detached,
        })
    }

    #[test]
    fn left_behind_operations_do_not_count_as_in_flight() {
        let driver = Driver::new(crate::Engine::Threads).expect("a driver");
        let mut slab = Slab::default();
        let command = slab.insert(operation(&driver, true));
        assert_eq!(slab.any_in_flight(), None);
        let other = slab.insert(operation(&driver, false));
        assert_eq!(slab.any_in_flight(), Some(other));
        assert!(slab.take(other).is_some() && slab.any_in_flight().is_none());
        assert!(slab.get(command).is_some(), "its result may come");
    }

    #[test]
    fn a_token_names_one_operation_only() {
        let driver = Driver::new(crate::Engine::Threads).expect("a driver");
        let operation = || operation(&driver, false);
        let mut slab = Slab::default();
        let first = slab.insert(operation());
        assert!(slab.take(first).is_some());
        let second = slab.insert(operation());
        assert_ne!(first, second, "the slot is reused under another token");
        assert!(slab.take(first).is_none() && slab.get(second).is_some());
        assert_eq!(slab.any_in_flight(), Some(second));
        assert!(slab.take(second).is_some() && slab.any_in_flight().is_none());
    }
}
