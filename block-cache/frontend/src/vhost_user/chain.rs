//! A request in the guest's memory.

use virtio_queue::DescriptorChain;

use super::memory::{Piece, Ram};

/// The memory of a request, in pieces.
#[derive(Default)]
pub(super) struct Chain {
    pub(super) head: u16,
    /// Memory that the guest has written.
    pub(super) readable: Vec<Piece>,
    /// Memory that the target writes.
    pub(super) writable: Vec<Piece>,
    /// Whether it is a valid request.
    pub(super) sound: bool,
}

impl Chain {
    /// Replaces it with the request of these descriptors. A request of more than `most` is invalid:
    /// an indirect table has up to 65,535, and each of them would take memory.
    pub(super) fn read(&mut self, descriptors: DescriptorChain<&Ram>, most: usize) {
        self.head = descriptors.head_index();
        self.readable.clear();
        self.writable.clear();
        let (mut ordered, mut goes_on) = (true, true);
        for descriptor in descriptors.take(most) {
            let piece = (descriptor.addr(), descriptor.len());
            if descriptor.is_write_only() {
                self.writable.push(piece);
            } else {
                ordered &= self.writable.is_empty();
                self.readable.push(piece);
            }
            goes_on = descriptor.has_next();
        }
        // A chain that continues after its last descriptor is circular, invalid or too long.
        self.sound = ordered && !goes_on;
    }
}
