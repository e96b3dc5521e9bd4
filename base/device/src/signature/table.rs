//! Known formats, each with the published source of its magic number. `uapi/` and `drivers/` are
//! paths in the Linux source tree.

use super::{Media, Signature};

pub(super) const FOREBAY: &str = "Forebay cache";
const BTT: &str = "Block Translation Table";

/// A format with fixed bytes at a fixed offset.
pub(super) struct Magic {
    pub(super) offset: u64,
    pub(super) bytes: &'static [u8],
    pub(super) name: &'static str,
}

const fn magic(offset: u64, bytes: &'static [u8], name: &'static str) -> Magic {
    Magic {
        offset,
        bytes,
        name,
    }
}

pub(super) const MAGICS: &[Magic] = &[
    // docs/internals/format/superblock.md: the superblock's first bytes, whatever its version.
    magic(0, b"FOREBAY", FOREBAY),
    // Open CAS: OCF src/metadata/metadata_superblock.h, CACHE_MAGIC_NUMBER 0x187E1CA6 after three
    // fields of four bytes in all.
    magic(4, &0x187e_1ca6_u32.to_le_bytes(), "Open CAS cache"),
    // drivers/md/bcache/bcache_ondisk.h, bcache_magic, in the superblock at sector 8.
    magic(
        4096 + 24,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "bcache device",
    ),
    // bcachefs-tools libbcachefs/bcachefs_format.h, BCHFS_MAGIC, same place.
    magic(
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "bcachefs file system",
    ),
    // drivers/md/dm-cache-metadata.c, CACHE_SUPERBLOCK_MAGIC: an octal number in the source.
    magic(32, &0o6_142_003_u64.to_le_bytes(), "dm-cache metadata"),
    // drivers/md/dm-thin-metadata.c, THIN_SUPERBLOCK_MAGIC.
    magic(32, &27_022_010_u64.to_le_bytes(), "dm-thin metadata"),
    // drivers/md/dm-era-target.c, SUPERBLOCK_MAGIC.
    magic(32, &2_126_579_579_u64.to_le_bytes(), "dm-era metadata"),
    // drivers/md/dm-writecache.c, MEMORY_SUPERBLOCK_MAGIC.
    magic(0, &0x2348_9321_u32.to_le_bytes(), "dm-writecache cache"),
    // UEFI specification, "Block Translation Table (BTT) Layout": version 2.0 here, 1.1 a page
    // later.
    magic(0, b"BTT_ARENA_INFO\0\0", BTT),
    magic(4096, b"BTT_ARENA_INFO\0\0", BTT),
    // drivers/md/dm-integrity.c, SB_MAGIC.
    magic(0, b"integrt\0", "dm-integrity device"),
    // cryptsetup lib/verity/verity.c, VERITY_SIGNATURE.
    magic(0, b"verity\0\0", "dm-verity hash device"),
    // drivers/md/dm-snap-persistent.c, SNAP_MAGIC.
    magic(0, &0x7041_6e53_u32.to_le_bytes(), "dm-snapshot store"),
    // drivers/md/dm-vdo/volume-geometry.c.
    magic(0, b"dmvdo001", "VDO device"),
    // LUKS on-disk format 1.2 and LUKS2 specification: LUKS_MAGIC; the second header's magic.
    magic(0, b"LUKS\xba\xbe", "LUKS encrypted device"),
    magic(0x4000, b"SKUL\xba\xbe", "LUKS encrypted device"),
    // Ceph src/os/bluestore/BlueStore.cc, the label's first line.
    magic(0, b"bluestore block device\n", "Ceph BlueStore device"),
    // fs/xfs/libxfs/xfs_format.h, XFS_SB_MAGIC.
    magic(0, b"XFSB", "XFS file system"),
    // uapi/linux/btrfs_tree.h, BTRFS_MAGIC in the superblock at 64 KiB.
    magic(0x1_0040, b"_BHRfS_M", "Btrfs file system"),
    // uapi/linux/magic.h and each file system's own header.
    magic(1024, &0xf2f5_2010_u32.to_le_bytes(), "F2FS file system"),
    magic(1024, &0xe0f5_e1e2_u32.to_le_bytes(), "EROFS file system"),
    magic(0x1_0034, b"ReIsEr", "ReiserFS file system"),
    magic(0x8000, b"JFS1", "JFS file system"),
    magic(0x1_0000, &0x0116_1970_u32.to_be_bytes(), "GFS2 file system"),
    magic(0, b"hsqs", "SquashFS file system"),
    // ECMA-119, volume descriptor at sector 16.
    magic(0x8001, b"CD001", "ISO 9660 file system"),
    // Microsoft: NTFS and exFAT boot sectors, OEM identifier; FAT specification 1.03,
    // BS_FilSysType.
    magic(3, b"NTFS    ", "NTFS file system"),
    magic(3, b"EXFAT   ", "exFAT file system"),
    magic(54, b"FAT12   ", "FAT file system"),
    magic(54, b"FAT16   ", "FAT file system"),
    magic(82, b"FAT32   ", "FAT file system"),
    // QEMU docs/interop/qcow2.txt; Microsoft's VHDX and VMware's VMDK specifications.
    magic(0, b"QFI\xfb", "QCOW2 image"),
    magic(0, b"vhdxfile", "VHDX image"),
    magic(0, b"KDMV", "VMDK image"),
    // UEFI specification, GPT header at LBA 1 of 512 or 4096 bytes.
    magic(512, b"EFI PART", "GPT partition table"),
    magic(4096, b"EFI PART", "GPT partition table"),
];

/// Offset of each format's label, and its maximum length, bytes.
const LABELS: &[(&str, u64, usize)] = &[
    ("ext2 file system", 1024 + 0x78, 16),
    ("ext3 file system", 1024 + 0x78, 16),
    ("ext4 file system", 1024 + 0x78, 16),
    ("XFS file system", 108, 12),
    ("Btrfs file system", 0x1_0000 + 0x12b, 256),
    ("swap area", 1052, 16),
];

/// Returns all recognised formats, each name once.
pub(super) fn recognise(media: &Media) -> Vec<Signature> {
    let mut names: Vec<&'static str> = MAGICS
        .iter()
        .filter(|magic| media.has(magic.offset, magic.bytes))
        .map(|magic| magic.name)
        .collect();
    names.extend(ext(media));
    names.extend(raid(media));
    names.extend(lvm(media));
    names.extend(zfs(media));
    names.extend(swap(media));
    names.extend(backup_gpt(media));
    if names.is_empty() {
        // Boot sectors of file systems, and a GPT's protective one, look like an MBR.
        names.extend(mbr(media));
    }
    let mut found: Vec<Signature> = Vec::new();
    for name in names {
        if found.iter().all(|one| one.name != name) {
            let label = LABELS
                .iter()
                .find(|label| label.0 == name)
                .and_then(|&(_, offset, len)| media.text(offset, len));
            found.push(Signature { name, label });
        }
    }
    found
}

/// ext2, 3 and 4: Documentation/filesystems/ext4/super.rst. Two bytes of magic alone would match
/// one random block in 65,536, so that the block size must make sense too.
fn ext(media: &Media) -> Option<&'static str> {
    const BASE: u64 = 1024;
    const EXT2_RO_COMPAT: u32 = 0x7; // sparse_super, large_file, btree_dir
    const EXT3_INCOMPAT: u32 = 0x2 | 0x4 | 0x10; // filetype, recover, meta_bg
    let magic = media.le16(BASE + 0x38)? == 0xef53;
    if !magic || media.le32(BASE + 0x18)? > 6 {
        return None;
    }
    let (compat, incompat, ro_compat) = (
        media.le32(BASE + 0x5c)?,
        media.le32(BASE + 0x60)?,
        media.le32(BASE + 0x64)?,
    );
    Some(if incompat & 0x8 != 0 {
        "ext external journal"
    } else if incompat & !EXT3_INCOMPAT != 0 || ro_compat & !EXT2_RO_COMPAT != 0 {
        "ext4 file system"
    } else if compat & 0x4 != 0 {
        "ext3 file system"
    } else {
        "ext2 file system"
    })
}

/// Linux software RAID: uapi/linux/raid/md_p.h, MD_SB_MAGIC and the places of each version.
fn raid(media: &Media) -> Option<&'static str> {
    const MAGIC: u32 = 0xa92b_4efc;
    let size_bytes = media.size_bytes;
    let version_1_0 = ((size_bytes >> 9).saturating_sub(16) & !7) << 9;
    let version_1 = [0, 4096, version_1_0]
        .iter()
        .any(|&at| media.le32(at) == Some(MAGIC) && media.le32(at + 4) == Some(1));
    // Version 0.90 is in the byte order of the machine that wrote it.
    let version_0_90 = (size_bytes & !0xffff)
        .checked_sub(0x1_0000)
        .is_some_and(|at| {
            media.le32(at + 4) == Some(0)
                && (media.has(at, &MAGIC.to_le_bytes()) || media.has(at, &MAGIC.to_be_bytes()))
        });
    (version_1 || version_0_90).then_some("Linux RAID member")
}

/// LVM2 lib/label/label.h: LABEL_ID in one of the first four sectors, type 24 bytes further.
fn lvm(media: &Media) -> Option<&'static str> {
    (0..4)
        .map(|sector| sector * 512)
        .any(|at| media.has(at, b"LABELONE") && media.has(at + 24, b"LVM2 001"))
        .then_some("LVM2 physical volume")
}

/// OpenZFS include/sys/uberblock_impl.h and vdev_impl.h: four labels of 256 KiB, two at either end.
/// Each has uberblocks of at least 1 KiB in its second half, in either byte order.
fn zfs(media: &Media) -> Option<&'static str> {
    const LABEL: u64 = 256 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let end = media.size_bytes & !(LABEL - 1);
    [
        0,
        LABEL,
        end.wrapping_sub(2 * LABEL),
        end.wrapping_sub(LABEL),
    ]
    .into_iter()
    .filter(|&label| label < end)
    .flat_map(|label| (LABEL / 2..LABEL).step_by(1024).map(move |at| label + at))
    .any(|at| {
        media
            .le64(at)
            .is_some_and(|word| word == MAGIC || word.swap_bytes() == MAGIC)
    })
    .then_some("ZFS member")
}

/// include/linux/swap.h: the magic ends the first page, of whatever size.
fn swap(media: &Media) -> Option<&'static str> {
    [4096, 8192, 16_384, 65_536]
        .into_iter()
        .any(|page| media.has(page - 10, b"SWAPSPACE2") || media.has(page - 10, b"SWAP-SPACE"))
        .then_some("swap area")
}

/// UEFI specification: the second GPT header, in the last block, survives a wiped beginning.
fn backup_gpt(media: &Media) -> Option<&'static str> {
    [512, 4096]
        .into_iter()
        .filter_map(|block| media.size_bytes.checked_sub(block))
        .any(|at| media.has(at, b"EFI PART"))
        .then_some("GPT partition table")
}

/// A boot sector: 55 AA at its end. With a plausible entry it is a partition table (UEFI
/// specification, 5.2.1 legacy MBR).
fn mbr(media: &Media) -> Option<&'static str> {
    if !media.has(510, b"\x55\xaa") {
        return None;
    }
    let entries = (0..4).filter_map(|index| media.at(446 + 16 * index, 16));
    let mut partitions = 0;
    for entry in entries {
        if entry[0] & 0x7f != 0 {
            return Some("boot sector");
        }
        let sectors_are_zero = entry[12..].iter().all(|&byte| byte == 0);
        partitions += u32::from(entry[4] != 0 && !sectors_are_zero);
    }
    Some(if partitions > 0 {
        "MBR partition table"
    } else {
        "boot sector"
    })
}
