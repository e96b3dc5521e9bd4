//! Guest memory that the monitor shares.

use std::fs::File;

use forebay_block::Buf;
use vhost::vhost_user::message::VhostUserMemoryRegion;
use virtio_queue::{Queue as Ring, QueueT as _};
use vm_memory::mmap::MmapRegion;
use vm_memory::{
    Address as _, Bytes as _, FileOffset, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap,
    GuestMemoryRegion as _, GuestRegionMmap, VolatileSlice,
};

use super::export::MAX_QUEUE_SIZE;

/// Guest memory in the type that rings use.
pub(super) type Ram = GuestMemoryMmap<()>;

/// A piece of guest memory: address and length, bytes.
pub(super) type Piece = (GuestAddress, u32);

/// Memory of a guest, mapped until its last user drops it.
pub(super) struct Memory {
    ram: Ram,
    regions: Vec<Region>,
}

/// A region of guest memory that the monitor has mapped.
struct Region {
    /// Address in the monitor.
    user: u64,
    size_bytes: u64,
    /// Address in the guest.
    guest: u64,
}

/// Whether the guest owns the address.
type Outcome = Result<(), BadAddress>;

/// Checks that a file has all bytes of a region. An access to a mapped page beyond the end of its
/// file would end this process (SIGBUS).
///
/// # Errors
/// The reason, as text.
fn check_within(file: &File, offset: u64, size: u64) -> Result<(), String> {
    let found = file.metadata().map_err(|error| error.to_string())?;
    let end = offset.checked_add(size);
    // The length of a device is unknown.
    match found.is_file() && end.is_none_or(|end| end > found.len()) {
        true => Err(format!(
            "a region of {size} bytes at byte {offset} of a file of {} bytes",
            found.len()
        )),
        false => Ok(()),
    }
}

/// An address outside the guest's memory.
#[derive(Debug)]
pub(super) struct BadAddress;

impl Memory {
    /// Maps the regions.
    ///
    /// # Errors
    /// The reason, as text.
    pub(super) fn map(regions: &[VhostUserMemoryRegion], files: Vec<File>) -> Result<Self, String> {
        let mut mapped = Vec::new();
        let mut known = Vec::new();
        for (region, file) in regions.iter().zip(files) {
            let (size, guest, user) =
                (region.memory_size, region.guest_phys_addr, region.user_addr);
            let bytes = usize::try_from(size).map_err(|error| error.to_string())?;
            check_within(&file, region.mmap_offset, size)?;
            let from = FileOffset::new(file, region.mmap_offset);
            let mapping = MmapRegion::from_file(from, bytes);
            let mapping = mapping.map_err(|error| format!("mapping {size} bytes: {error}"))?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(guest));
            mapped.push(region.ok_or("a region beyond the end of addresses")?);
            known.push(Region {
                user,
                size_bytes: size,
                guest,
            });
        }
        mapped.sort_by_key(|region| region.start_addr());
        let ram = Ram::from_regions(mapped).map_err(|error| error.to_string())?;
        Ok(Self {
            ram,
            regions: known,
        })
    }

    pub(super) const fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Returns the guest's address of the monitor's address `user`.
    pub(super) fn guest_address(&self, user: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|region| {
            let offset = user.checked_sub(region.user);
            let offset = offset.filter(|offset| *offset < region.size_bytes)?;
            Some(GuestAddress(region.guest + offset))
        })
    }

    /// Returns the guest's memory with an additional ring that contains these heads of `ring`. It
    /// serves to read them separately: the guest's own ring has other entries by now. Returns
    /// `None` if there is no room for it.
    pub(super) fn with_heads(&self, ring: &Ring, heads: &[u16]) -> Option<(Ram, Ring)> {
        let end = self.ram.last_addr().checked_add(1)?;
        let place = end.checked_align_up(4096)?;
        // Flags, the index, and an entry for each.
        let bytes = 4 + 2 * usize::from(ring.size());
        let region = GuestRegionMmap::new(MmapRegion::new(bytes).ok()?, place)?;
        let ram = self.ram.insert_region(region.into()).ok()?;
        let count = u16::try_from(heads.len()).ok()?;
        ram.write_obj(count.to_le(), place.checked_add(2)?).ok()?;
        for (at, head) in (0..).zip(heads) {
            let entry = place.checked_add(4 + 2 * at)?;
            ram.write_obj(head.to_le(), entry).ok()?;
        }
        let mut extra = Ring::new(MAX_QUEUE_SIZE).ok()?;
        extra.try_set_size(ring.size()).ok()?;
        let descriptors = GuestAddress(ring.desc_table());
        extra.try_set_desc_table_address(descriptors).ok()?;
        extra.try_set_avail_ring_address(place).ok()?;
        extra.set_ready(true);
        Some((ram, extra))
    }

    /// Copies bytes out of `pieces`, after skipping `skip` bytes.
    pub(super) fn gather(&self, pieces: &[Piece], skip: u64, into: &mut [u8]) -> Outcome {
        self.copy(pieces, skip, VolatileSlice::from(into), Way::Out)
    }

    /// Copies bytes into `pieces`, after skipping `skip` bytes.
    pub(super) fn scatter(&self, pieces: &[Piece], skip: u64, from: &mut [u8]) -> Outcome {
        self.copy(pieces, skip, VolatileSlice::from(from), Way::In)
    }

    /// [`Memory::gather`] into a buffer.
    pub(super) fn gather_buf(&self, pieces: &[Piece], skip: u64, into: &Buf) -> Outcome {
        // SAFETY: the memory lives as long as the buffer, through this call.
        let ours = unsafe { VolatileSlice::new(into.as_ptr(), into.len()) };
        self.copy(pieces, skip, ours, Way::Out)
    }

    /// [`Memory::scatter`] from a buffer.
    pub(super) fn scatter_buf(&self, pieces: &[Piece], from: &Buf) -> Outcome {
        // SAFETY: as above.
        let ours = unsafe { VolatileSlice::new(from.as_ptr(), from.len()) };
        self.copy(pieces, 0, ours, Way::In)
    }

    fn copy(&self, pieces: &[Piece], skip: u64, ours: VolatileSlice<'_>, way: Way) -> Outcome {
        let mut done = 0;
        for (address, len) in cut(pieces, skip, ours.len()) {
            for guests in self.ram.get_slices(address, len) {
                let guests = guests.map_err(|_| BadAddress)?;
                let part = ours.subslice(done, guests.len()).map_err(|_| BadAddress)?;
                match way {
                    Way::Out => guests.copy_to_volatile_slice(part),
                    Way::In => part.copy_to_volatile_slice(guests),
                }
                done += part.len();
            }
        }
        if done < ours.len() {
            return Err(BadAddress);
        }
        Ok(())
    }
}

/// Direction: out of the guest's memory, or into it.
#[derive(Clone, Copy)]
enum Way {
    Out,
    In,
}

/// Returns the parts of `pieces` that contain `want` bytes after the first `skip`, as far as they
/// exist.
fn cut(
    pieces: &[Piece],
    mut skip: u64,
    mut want: usize,
) -> impl Iterator<Item = (GuestAddress, usize)> + '_ {
    pieces.iter().filter_map(move |(address, len)| {
        let here = u64::from(*len);
        if skip >= here {
            skip -= here;
            return None;
        }
        let start = std::mem::take(&mut skip);
        let len = usize::try_from(here - start)
            .unwrap_or(usize::MAX)
            .min(want);
        want -= len;
        // An address that overflows belongs to no guest.
        (len > 0).then(|| (GuestAddress(address.0.saturating_add(start)), len))
    })
}

#[cfg(test)]
mod tests {
    use forebay_io::shm;

    use super::*;

    #[test]
    fn regions_beyond_the_end_of_their_file_are_refused() {
        let map = |offset, size| {
            let file = shm::nameless(c"forebay-guest", 8192).expect("memory");
            let region = VhostUserMemoryRegion::new(0, size, 0, offset);
            Memory::map(&[region], vec![file]).map(drop)
        };
        map(4096, 4096).expect("it is in the file");
        for (offset, size) in [
            (8192, 4096),
            (4096, 8192),
            (0xbd00_0000, 4096),
            (!0 << 12, 4096),
        ] {
            let refused = map(offset, size).expect_err("it is not");
            assert!(refused.contains("of a file of 8192 bytes"), "{refused}");
        }
    }
}
