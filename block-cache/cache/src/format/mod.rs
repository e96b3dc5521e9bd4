//! Making a cache, and looking at what a device holds.

pub(crate) mod inspect;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, DeviceInfo, Error, ErrorKind, Result};
use forebay_metadata::record::RECORD_BYTES;
use forebay_metadata::superblock::{
    COPY_STRIDE_BYTES, DirtyZones, LINE_BYTES, PlanInput, Role, SECTOR_BYTES, Superblock,
    ZONE_SHIFT,
};
use forebay_metadata::{checksums, tree};
use forebay_policy::BlockSizes;

use crate::media::check_same_state;
use crate::options::{Devices, FormatOptions};

/// Generation of a cache that was never opened.
const FORMATTED: u64 = 1;
/// Bytes zeroed at a time while formatting.
const WIPE_BYTES: u64 = 1 << 20;

/// Returns the smallest unit in which a log on this device is written, in bytes.
fn unit_of(device: &dyn BlockDevice) -> u32 {
    let info = device.info();
    let least = match info.byte_addressable {
        true => LINE_BYTES,
        false => SECTOR_BYTES,
    };
    let block = info.logical_block_bytes.max(info.physical_block_bytes);
    block.max(least)
}

/// Makes an empty cache on the devices and overwrites their content. The caller has obtained any
/// confirmation (see [`inspect()`](crate::inspect)).
///
/// # Errors
/// `InvalidInput` for a block size that is not a power of two from 4 KiB to 1 MiB. `NoSpace` for
/// devices that are too small. `Unsupported` for a data device that tears blocks. The device's own
/// errors.
pub async fn format(devices: &Devices, options: &FormatOptions) -> Result<()> {
    let metadata = devices.metadata.as_ref().unwrap_or(&devices.data);
    check_block(devices.data.as_ref())?;
    let sizes = BlockSizes::new(&options.block_sizes_bytes).map_err(|what| {
        let what = format!("{what}\nhelp: choose powers of two from 4096 to 1048576");
        Error::new(ErrorKind::InvalidInput, what)
    })?;
    let superblock = Superblock::plan(PlanInput {
        data_bytes: devices.data.info().size_bytes,
        metadata_bytes: devices.metadata.as_ref().map(|d| d.info().size_bytes),
        unit_bytes: unit_of(metadata.as_ref()),
        block_size_bytes: u32::try_from(sizes.unit_bytes()).unwrap_or(u32::MAX),
        classes: sizes.mask(),
        region_shift: options.region_shift,
        dirty_tracking: options.dirty_tracking,
        checksums: options.checksums,
        uuid: options.uuid,
    })?;
    // An interrupted format must leave no cache rather than half of one: the old superblocks go
    // first and the new one comes last.
    for device in [Some(&devices.data), devices.metadata.as_ref()]
        .into_iter()
        .flatten()
    {
        let zeroes = Buf::zeroed(usize::try_from(COPY_STRIDE_BYTES).expect("small"));
        device.write(0, zeroes.clone()).await?;
        device.write(COPY_STRIDE_BYTES, zeroes).await?;
        device.flush().await?;
    }
    // Records of an earlier cache would not verify under the new identity. The ring is wiped all
    // the same, so that an unreadable place shows now and a sparse file is allocated now.
    let log_bytes = superblock.log.records * RECORD_BYTES as u64;
    let mut at = 0;
    while at < log_bytes {
        let len = WIPE_BYTES.min(log_bytes - at);
        let zeroes = Buf::zeroed(usize::try_from(len).expect("a chunk"));
        metadata.write(superblock.log.offset + at, zeroes).await?;
        at += len;
    }
    metadata.flush().await?;
    if let Some(extent) = superblock.tree() {
        let (seed, epoch) = (superblock.seed(), superblock.tree_epoch);
        tree::format(metadata.as_ref(), extent, seed, epoch).await?;
    }
    if let Some(table) = superblock.checksum_table() {
        checksums::format(metadata.as_ref(), table).await?;
    }
    let largest = (sizes.region_bytes().ilog2() as u8).min(ZONE_SHIFT);
    let mut first = Superblock {
        zones: Some(DirtyZones::new(options.zone_shift.max(largest))),
        ..superblock
    };
    // An empty cache that is put back later is an earlier state, too.
    first.service.generation = FORMATTED;
    if devices.metadata.is_some() {
        first.service.data_generation = FORMATTED;
    }
    for _ in 0..2 {
        first.sequence += 1;
        if devices.metadata.is_some() {
            first.write(devices.data.as_ref(), Role::Data).await?;
        }
        let role = first.role;
        first.write(metadata.as_ref(), role).await?;
    }
    Ok(())
}

/// Returns a message if the data device is shorter than the cache.
pub(crate) fn shrunk(superblock: &Superblock, data: &dyn BlockDevice) -> Option<String> {
    let (info, end) = (data.info(), superblock.data_end());
    (end > info.size_bytes).then(|| {
        format!(
            "{} shrank to {} bytes, and the cache on it needs {end}",
            info.name, info.size_bytes
        )
    })
}

/// No device may tear a block at power loss (rule 8). Byte-addressable media without a layer over
/// them do.
pub(crate) fn check_whole(info: &DeviceInfo) -> Result<()> {
    if info.atomic_write_bytes >= info.logical_block_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{}: it writes {} bytes atomically, so a power loss can tear blocks\n\
             help: put a block translation table over it (kind = \"btt\"). A device with metadata \
             alone needs none",
            info.name, info.atomic_write_bytes
        ),
    ))
}

/// Granules are 4 KiB at least, and a granule is written without its neighbours.
fn check_block(data: &dyn BlockDevice) -> Result<()> {
    let info = data.info();
    check_whole(&info)?;
    if info.logical_block_bytes <= 4096 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "{}: logical blocks of {} bytes, and a cache needs 4096 or less\n\
             help: use a device with smaller logical blocks",
            info.name, info.logical_block_bytes
        ),
    ))
}

/// The device for a cache's data has no superblock that can be read.
fn no_data_device(error: Error, name: &str) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{name} holds no cache, and the metadata device belongs to one with separate data\n\
                 help: check the names of the devices, and put the right data device back, or a \
                 copy of it"
            ),
        ),
        _ => error.context(format!(
            "whether {name} is the data device of this cache is unknown\n\
             help: put a copy of it back. If there is none, make a new cache with `forebay format \
             --force --discard-dirty`: acknowledged data that was not written back IS LOST THEN"
        )),
    }
}

/// Checks that the devices belong together and that the data fits.
pub(crate) async fn check_roles(devices: &Devices, superblock: &Superblock) -> Result<()> {
    check_parts(devices, superblock).await?;
    check_fit(devices, superblock)
}

/// Checks that the devices belong together, and hold the same state of the cache. Returns the
/// superblock of a separate data device.
///
/// # Errors
/// `InvalidInput` for devices of other caches or in other roles, `Lost` where one of them holds an
/// earlier state, or the data device's own.
pub async fn check_parts(devices: &Devices, superblock: &Superblock) -> Result<Option<Superblock>> {
    let data_name = devices.data.info().name;
    let wrong = |what: String| Err(Error::new(ErrorKind::InvalidInput, what));
    match (&devices.metadata, superblock.role) {
        (None, Role::Whole) => Ok(None),
        (Some(_), Role::Metadata) => {
            let other = Superblock::read(devices.data.as_ref()).await;
            let other = other.map_err(|error| no_data_device(error, &data_name))?;
            if other.uuid != superblock.uuid || other.role != Role::Data {
                return wrong(format!(
                    "{data_name} is not the data device of this cache\n\
                     help: check the names of the devices, and put the right one back"
                ));
            }
            check_same_state(devices, superblock, &other)?;
            Ok(Some(other))
        }
        (None, Role::Data) => wrong(format!(
            "{data_name} holds only the data of a cache\n\
             help: name the cache's metadata device too (`metadata` in [cache], or --metadata)"
        )),
        _ => wrong(format!(
            "{data_name} and its metadata device are in the wrong roles\n\
             help: exchange them, or leave out the metadata device where one device holds all"
        )),
    }
}

/// Returns a message if the metadata device is shorter than the cache's metadata.
fn shrunk_metadata(superblock: &Superblock, metadata: &dyn BlockDevice) -> Option<String> {
    let (info, end) = (metadata.info(), superblock.metadata_end());
    (end > info.size_bytes).then(|| {
        format!(
            "{} shrank to {} bytes, and the cache's metadata needs {end}\n\
             help: put the device or file back that has all of it, else dirty data IS LOST. To \
             continue without it, restore its size (a file: `truncate -s {end} FILE`), and start: \
             the start names the losses",
            info.name, info.size_bytes
        )
    })
}

/// Checks that the data and the metadata fit on their devices, and the log's unit its device.
pub(crate) fn check_fit(devices: &Devices, superblock: &Superblock) -> Result<()> {
    check_block(devices.data.as_ref())?;
    if let Some(shrunk) = shrunk(superblock, devices.data.as_ref()) {
        let what = format!(
            "{shrunk}\n\
             help: put the device back that has all of it, else data beyond the end, also dirty \
             data, IS LOST. To continue without it, restore the size of this one (a file: \
             `truncate -s SIZE FILE`), and start: the start names the losses"
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let metadata = devices.metadata.as_ref().unwrap_or(&devices.data);
    if let Some(shrunk) = shrunk_metadata(superblock, metadata.as_ref()) {
        return Err(Error::new(ErrorKind::InvalidInput, shrunk));
    }
    let info = metadata.info();
    if superblock.has_lines() && !info.byte_addressable {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: a log in lines of {LINE_BYTES} bytes needs byte-addressable media\n\
                 help: name it as a device of kind \"pmem\", without a layer over it",
                info.name
            ),
        ));
    }
    if unit_of(metadata.as_ref()) > superblock.log.unit_bytes {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "{}: blocks of {} bytes, and {} when the cache was formatted: a torn write could \
                 destroy other records\n\
                 help: copy the cache to a device with smaller blocks, or format it, which \
                 discards it",
                info.name,
                unit_of(metadata.as_ref()),
                superblock.log.unit_bytes
            ),
        ));
    }
    Ok(())
}
