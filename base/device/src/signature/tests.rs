use super::*;
use crate::mem::MemDevice;
use forebay_block::{Completion, DeviceInfo, Error, ErrorKind, Op, Request};
use forebay_io::rt::block_on_simulated;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Content of a device of `size_bytes` with these bytes at these offsets.
fn found_with(size_bytes: u64, pieces: &[(u64, &[u8])]) -> Found {
    let pieces: Vec<(u64, Vec<u8>)> = pieces
        .iter()
        .map(|(offset, bytes)| (*offset, bytes.to_vec()))
        .collect();
    block_on_simulated(1, async move {
        let device = MemDevice::new("m", size_bytes);
        for (offset, bytes) in pieces {
            let start = offset & !511;
            let end = (offset + bytes.len() as u64).next_multiple_of(512);
            let buf = Buf::scratch((end - start) as usize);
            device.read(start, buf.clone()).await.expect("read");
            buf.copy_from((offset - start) as usize, &bytes);
            device.write(start, buf).await.expect("write");
        }
        probe(&*device).await.expect("probed")
    })
}

#[track_caller]
fn check(size_bytes: u64, pieces: &[(u64, &[u8])], words: &str) {
    assert_eq!(found_with(size_bytes, pieces).to_string(), words);
}

const GIB: u64 = 1 << 30;

#[test]
fn zeroes_are_empty_and_anything_else_is_not() {
    for size_bytes in [0, 512, 4096, 1 << 20, (1 << 20) + 512, (3 << 20) - 512, GIB] {
        assert_eq!(found_with(size_bytes, &[]), Found::Empty, "{size_bytes}");
    }
    check(512, &[(511, b"x")], "unknown data");
    check(GIB, &[(5000, b"hello")], "unknown data");
    check(GIB, &[(GIB - 1, b"x")], "unknown data");
    // Data begins only in the middle.
    let middle = vec![1; 64 << 20];
    check(GIB, &[(512 << 20, &middle)], "unknown data");
    check((2 << 20) + 512, &[((1 << 20) + 5, b"x")], "unknown data");
}

#[test]
fn fixed_magics_are_recognised() {
    check(GIB, &[(0, b"FOREBAY1")], "Forebay cache");
    assert!(found_with(GIB, &[(0, b"FOREBAY1")]).is_forebay());
    check(GIB, &[(4, b"\xa6\x1c\x7e\x18")], "Open CAS cache");
    let bcache = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
    check(GIB, &[(4120, bcache)], "bcache device");
    check(
        GIB,
        &[(32, &1_623_043_u64.to_le_bytes())],
        "dm-cache metadata",
    );
    check(
        GIB,
        &[(32, &27_022_010_u64.to_le_bytes())],
        "dm-thin metadata",
    );
    check(GIB, &[(0, b"\x21\x93\x48\x23")], "dm-writecache cache");
    check(GIB, &[(0x4000, b"SKUL\xba\xbe")], "LUKS encrypted device");
    check(
        GIB,
        &[(3, b"NTFS    "), (510, b"\x55\xaa")],
        "NTFS file system",
    );
    check(
        GIB,
        &[(82, b"FAT32   "), (510, b"\x55\xaa")],
        "FAT file system",
    );
    check(GIB, &[(0, b"QFI\xfb")], "QCOW2 image");
    assert!(!found_with(GIB, &[(0, b"QFI\xfb")]).is_forebay());
}

#[test]
fn every_fixed_magic_is_looked_for_where_it_lies() {
    for magic in table::MAGICS {
        check(GIB, &[(magic.offset, magic.bytes)], magic.name);
    }
}

#[test]
fn ext_generations_are_distinguished() {
    let ext = |compat: u8, incompat: u8, ro_compat: u8| {
        let features = [compat, 0, 0, 0, incompat, 0, 0, 0, ro_compat];
        let magic: (u64, &[u8]) = (1080, b"\x53\xef");
        found_with(GIB, &[magic, (1024 + 0x5c, &features)]).to_string()
    };
    assert_eq!(ext(0, 2, 1), "ext2 file system");
    assert_eq!(ext(4, 2, 1), "ext3 file system");
    assert_eq!(ext(4, 0x42, 1), "ext4 file system");
    assert_eq!(ext(4, 2, 0x10), "ext4 file system");
    assert_eq!(ext(0, 8, 0), "ext external journal");
    // The magic by chance: a block size of 2^(10 + 255).
    check(GIB, &[(1080, b"\x53\xef"), (1048, b"\xff")], "unknown data");
}

#[test]
fn raid_members_are_found_at_each_place() {
    let version_1 = b"\xfc\x4e\x2b\xa9\x01\0\0\0";
    let odd = GIB + 512 * 5;
    check(GIB, &[(0, version_1)], "Linux RAID member");
    check(GIB, &[(4096, version_1)], "Linux RAID member");
    check(GIB, &[(GIB - 8192, version_1)], "Linux RAID member");
    check(odd, &[(GIB - 8192, version_1)], "Linux RAID member");
    check(
        GIB,
        &[(GIB - 65_536, b"\xfc\x4e\x2b\xa9\0\0\0\0")],
        "Linux RAID member",
    );
    check(
        odd,
        &[(GIB - 65_536, b"\xa9\x2b\x4e\xfc\0\0\0\0")],
        "Linux RAID member",
    );
    check(GIB, &[(8192, version_1)], "unknown data");
}

#[test]
fn zfs_lvm_swap_and_partitions_are_found() {
    let zfs = 0x00ba_b10c_u64;
    check(
        GIB,
        &[((128 << 10) + 1024, &zfs.to_le_bytes())],
        "ZFS member",
    );
    check(
        GIB,
        &[((384 << 10) + 2048, &zfs.to_be_bytes())],
        "ZFS member",
    );
    check(
        GIB + 4096,
        &[(GIB - (128 << 10), &zfs.to_le_bytes())],
        "ZFS member",
    );
    check(
        GIB,
        &[(512, b"LABELONE"), (536, b"LVM2 001")],
        "LVM2 physical volume",
    );
    check(GIB, &[(512, b"LABELONE")], "unknown data");
    check(
        GIB,
        &[(4086, b"SWAPSPACE2"), (1052, b"s1")],
        "swap area (label \"s1\")",
    );
    check(GIB, &[(65_526, b"SWAPSPACE2")], "swap area");
    check(GIB, &[(GIB - 512, b"EFI PART")], "GPT partition table");
    let entry = b"\x80\0\0\0\x83\0\0\0\0\x08\0\0\0\0\x20\0";
    check(
        GIB,
        &[(446, entry), (510, b"\x55\xaa")],
        "MBR partition table",
    );
    check(GIB, &[(510, b"\x55\xaa")], "boot sector");
}

#[test]
fn older_formats_underneath_are_reported() {
    check(
        GIB,
        &[(0, b"XFSB"), (108, b"data"), (GIB - 512, b"EFI PART")],
        "XFS file system (label \"data\"), GPT partition table",
    );
}

/// A device whose reads fail in the middle.
struct BadMiddle(std::rc::Rc<dyn BlockDevice>);

impl BlockDevice for BadMiddle {
    fn info(&self) -> DeviceInfo {
        self.0.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        assert_eq!(request.op, Op::Read, "a probe only reads");
        if request.offset > 0 && request.len < END_BYTES {
            return done.complete(Err(Error::new(ErrorKind::Io, "bad sector")));
        }
        self.0.submit(request, done);
    }
}

#[test]
fn an_unreadable_device_is_not_empty() {
    block_on_simulated(1, async {
        let device = BadMiddle(MemDevice::new("disk7", GIB));
        let error = probe(&device).await.expect_err("the middle is bad");
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.report().contains("disk7"), "{}", error.report());
    });
}

/// An image file as a device.
struct Image(File, u64);

impl BlockDevice for Image {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("image", self.1)
    }

    fn submit(&self, request: Request, done: Completion) {
        let buf = request.buf.expect("a probe only reads");
        let mut bytes = vec![0; buf.len()];
        let outcome = self.0.read_exact_at(&mut bytes, request.offset);
        buf.copy_from(0, &bytes);
        done.complete(outcome.map_err(Error::from));
    }
}

/// Removes a file on drop.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs `program args image` on a fresh sparse image and returns the probed content. Returns `None`
/// if the program is not installed, and says so on stderr.
fn made_by(program: &str, args: &[&str], stdin: &str) -> Option<String> {
    let path = std::env::temp_dir().join(format!(
        "forebay-signature-{}-{program}-{}",
        std::process::id(),
        args.len()
    ));
    let input = Scratch(path.with_extension("in"));
    std::fs::write(&input.0, stdin).expect("input written");
    let scratch = Scratch(path);
    let image = File::create(&scratch.0).expect("image made");
    image.set_len(320 << 20).expect("image sized");
    let search = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let [image_path, input_path] = [&scratch, &input].map(|file| file.0.display().to_string());
    let args = args
        .iter()
        .map(|arg| arg.replace("{}", &image_path).replace("{in}", &input_path));
    let started = Command::new(program)
        .args(args)
        .env("PATH", search)
        .stdin(File::open(&input.0).expect("input opened"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let child = match started {
        Ok(child) => child,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            eprintln!(
                "SKIPPED: {program} is not installed; its format is tested synthetically only"
            );
            return None;
        }
        Err(error) => panic!("{program}: {error}"),
    };
    let output = child.wait_with_output().expect("ran");
    assert!(
        output.status.success(),
        "{program} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let image = open_image(&scratch.0);
    let found = block_on_simulated(1, async move { probe(&image).await.expect("probed") });
    Some(found.to_string())
}

fn open_image(path: &Path) -> Image {
    let file = File::open(path).expect("image opened");
    let len = file.metadata().expect("image has a size").len();
    Image(file, len)
}

#[test]
fn real_images_are_recognised() {
    let thin = concat!(
        r#"<superblock uuid="" time="0" transaction="0" data_block_size="128" "#,
        r#"nr_data_blocks="0"></superblock>"#,
    );
    let cache = concat!(
        r#"<superblock uuid="" block_size="128" nr_cache_blocks="10" policy="smq" "#,
        r#"hint_width="4"><mappings></mappings><hints></hints></superblock>"#,
    );
    let programs: &[(&str, &[&str], &str, &str)] = &[
        (
            "mkfs.ext2",
            &["-qF", "-L", "old", "{}"],
            "",
            "ext2 file system (label \"old\")",
        ),
        ("mkfs.ext3", &["-qF", "{}"], "", "ext3 file system"),
        (
            "mkfs.ext4",
            &["-qF", "-L", "books", "{}"],
            "",
            "ext4 file system (label \"books\")",
        ),
        (
            "mkfs.xfs",
            &["-q", "-L", "data", "{}"],
            "",
            "XFS file system (label \"data\")",
        ),
        (
            "mkfs.btrfs",
            &["-q", "-L", "b", "{}"],
            "",
            "Btrfs file system (label \"b\")",
        ),
        ("mkswap", &["-L", "s", "{}"], "", "swap area (label \"s\")"),
        ("mkfs.fat", &["-F", "16", "{}"], "", "FAT file system"),
        (
            "mkfs.fat",
            &["-F", "32", "-s", "1", "{}"],
            "",
            "FAT file system",
        ),
        ("mkfs.exfat", &["{}"], "", "exFAT file system"),
        ("mkfs.ntfs", &["-QFq", "{}"], "", "NTFS file system"),
        ("mkfs.f2fs", &["-q", "{}"], "", "F2FS file system"),
        (
            "sfdisk",
            &["-q", "{}"],
            "label: dos\n,100M\n",
            "MBR partition table",
        ),
        (
            "sfdisk",
            &["--quiet", "{}", "--wipe=never"],
            "label: gpt\n,100M\n",
            "GPT partition table",
        ),
        (
            "cryptsetup",
            &[
                "-q",
                "luksFormat",
                "--pbkdf",
                "pbkdf2",
                "--pbkdf-force-iterations",
                "1000",
                "{}",
            ],
            "a passphrase\n",
            "LUKS encrypted device",
        ),
        ("make-bcache", &["-C", "{}"], "", "bcache device"),
        (
            "thin_restore",
            &["-i", "{in}", "-o", "{}"],
            thin,
            "dm-thin metadata",
        ),
        (
            "cache_restore",
            &["-i", "{in}", "-o", "{}"],
            cache,
            "dm-cache metadata",
        ),
    ];
    let mut made = 0;
    for &(program, args, stdin, words) in programs {
        if let Some(found) = made_by(program, args, stdin) {
            assert_eq!(found, words, "{program} {args:?}");
            made += 1;
        }
    }
    eprintln!(
        "{made} of {} formats tested with real images",
        programs.len()
    );
}
