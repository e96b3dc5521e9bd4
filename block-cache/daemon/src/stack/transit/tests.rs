//! Transit caches of stacks in this process, which end cleanly or die.

use forebay_btt::{FormatOptions, format};
use forebay_device::file::FileDeviceOptions;
use forebay_io::pmem::PmemMapping;
use forebay_io::shm::hold_shared;
use forebay_io::{Engine, Reactor};
use forebay_transit::AT_CUT;

use super::cut::look_for_cut;
use super::*;
use crate::config::Config;
use crate::stack::{Stack, Wishes, open_path};

struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // A later test's medium may get the identity of this one.
        let _ = std::fs::remove_file(slots(self));
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a directory with `medium`, plain or with a table, and a configuration on it.
fn scratch(name: &str, table: bool, policy: &str) -> (Scratch, Config) {
    let path = std::env::temp_dir().join(format!("fb-transit-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a temporary directory");
    let medium = path.join("medium");
    let devices = match table {
        true => {
            let memory = PmemMapping::open(&medium, Some(32 << 20)).expect("made");
            format(&memory, &FormatOptions::new(4096, [3; 16])).expect("large enough");
            "{ name = \"pm\", kind = \"pmem\", path = \"medium\" }, { name = \"under\", kind = \
             \"btt\", on = \"pm\" }"
        }
        false => {
            let file = std::fs::File::create(&medium).expect("made");
            file.set_len(32 << 20).expect("sparse");
            "{ name = \"under\", kind = \"file\", path = \"medium\", direct = false }"
        }
    };
    let text = format!(
        "server.state = \"state\"\n\
         device = [{devices}, {{ name = \"fast\", kind = \"transit\", on = \"under\", capacity = \
         \"1M\", policy = \"{policy}\" }}]\n\
         volume = [{{ name = \"db\", backing = \"fast\" }}]\n"
    );
    let config = Config::parse(&path.join("f.toml"), &text).expect("right");
    (Scratch(path), config)
}

fn run<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    Reactor::new(Engine::Threads)
        .expect("threads work everywhere")
        .run(future)
}

async fn open_stack(config: &Config) -> Result<Stack> {
    Stack::open(config, &Wishes::default()).await
}

/// Writes to the volume and ends without a close.
fn write_and_die(config: &Config, what: u8) {
    let config = config.clone();
    run(async move {
        let stack = open_stack(&config).await.expect("opens");
        let db = stack.volume("db").expect("there").open();
        let data = Buf::zeroed(8192);
        data.fill(what);
        db.write(4096, data).await.expect("written");
    });
}

/// Returns the volume's contents at the place of the writes, after a clean close.
fn read_and_close(config: &Config) -> u8 {
    let config = config.clone();
    run(async move {
        let stack = open_stack(&config).await.expect("opens");
        let db = stack.volume("db").expect("there").open();
        let back = Buf::zeroed(8192);
        db.read(4096, back.clone()).await.expect("read");
        stack.close().await.expect("closed");
        let bytes = back.to_vec();
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "whole");
        bytes[0]
    })
}

/// Returns the file of the slots over the medium.
fn slots(scratch: &Scratch) -> PathBuf {
    place(&medium(scratch))
}

fn medium(scratch: &Scratch) -> DeviceInfo {
    let medium = scratch.0.join("medium");
    run(async move {
        let options = FileDeviceOptions {
            read_only: true,
            ..FileDeviceOptions::default()
        };
        let device = forebay_device::file::FileDevice::open(&medium, options).expect("there");
        device.info()
    })
}

#[test]
fn acknowledged_writes_outlive_the_daemon_over_a_table_and_over_a_file() {
    for (name, table) in [("table", true), ("file", false)] {
        for policy in ["caiti", "lru"] {
            let (scratch, config) = scratch(&format!("{name}-{policy}"), table, policy);
            write_and_die(&config, 1);
            write_and_die(&config, 2);
            assert_eq!(read_and_close(&config), 2, "{name} {policy}");
            assert!(!slots(&scratch).exists(), "a clean end leaves nothing");
            assert_eq!(read_and_close(&config), 2, "the device has it");
        }
    }
}

#[test]
fn slots_that_are_gone_are_missed() {
    let (scratch, config) = scratch("gone", false, "lru");
    write_and_die(&config, 1);
    let file = slots(&scratch);
    assert!(file.exists());
    std::fs::remove_file(&file).expect("it is there");
    let (same, accepting) = (config.clone(), config.clone());
    for _ in 0..2 {
        let same = same.clone();
        let error = run(async move { open_stack(&same).await.expect_err("they are gone") });
        let report = error.report();
        assert_eq!(error.kind(), ErrorKind::Lost, "{report}");
        assert!(report.contains("--accept-journal-loss"), "{report}");
    }
    run(async move {
        let wishes = Wishes {
            accept_journal_loss: true,
            ..Wishes::default()
        };
        let stack = Stack::open(&accepting, &wishes).await.expect("accepted");
        stack.close().await.expect("closed");
    });
    assert_eq!(read_and_close(&config), 0);
}

#[test]
fn opening_the_medium_itself_reports_blocks_left_in_slots() {
    let (scratch, config) = scratch("left", false, "lru");
    write_and_die(&config, 1);
    let medium = scratch.0.join("medium");
    let open = |medium: PathBuf| {
        run(async move { open_path(&medium, FileDeviceOptions::default()).map(|_| ()) })
    };
    let error = open(medium.clone()).expect_err("it lacks two blocks");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(
        error.report().contains("start the daemon once"),
        "{error:?}"
    );
    assert_eq!(read_and_close(&config), 1);
    open(medium).expect("it has everything");
}

#[test]
fn a_table_on_emulated_memory_says_so() {
    let (scratch, _) = scratch("emulated", true, "caiti");
    let text = "server.state = \"state\"\n\
        device = [{ name = \"pm\", kind = \"pmem\", path = \"medium\" },\n\
        { name = \"slow\", kind = \"emulate\", on = \"pm\", profile = \"optane-dimm\" },\n\
        { name = \"under\", kind = \"btt\", on = \"slow\" },\n\
        { name = \"fast\", kind = \"transit\", on = \"under\", capacity = \"1M\" }]\n\
        volume = [{ name = \"db\", backing = \"fast\" }]\n";
    let config = Config::parse(&scratch.0.join("f.toml"), text).expect("right");
    write_and_die(&config, 4);
    assert_eq!(read_and_close(&config), 4);
    run(async move {
        let stack = open_stack(&config).await.expect("opens");
        let what = stack.status().devices[0].what.clone();
        assert!(
            what.contains("emulated: optane-dimm, 305 ns load"),
            "{what}"
        );
        stack.close().await.expect("closed");
    });
}

#[test]
fn the_status_shows_policy_and_counters_of_a_transit_cache() {
    let (_scratch, config) = scratch("status", true, "caiti");
    run(async move {
        let stack = open_stack(&config).await.expect("opens");
        let db = stack.volume("db").expect("there").open();
        db.write(0, Buf::zeroed(16384)).await.expect("written");
        db.flush().await.expect("flushed");
        let status = stack.status();
        let transit = &status.transits[0];
        assert_eq!(
            (transit.name.as_str(), transit.policy.as_str()),
            ("fast", "caiti")
        );
        assert_eq!(
            (transit.written, transit.evicted, transit.owed_bytes),
            (4, 4, 0)
        );
        assert_eq!(transit.capacity_bytes, 1 << 20);
        assert!(
            status.devices[0]
                .what
                .starts_with("caiti transit cache over block")
        );
        stack.close().await.expect("closed");
    });
}

#[test]
fn a_device_that_does_not_end_its_last_flush_is_named_with_its_missing_data() {
    let (scratch, config) = scratch("stuck", false, "lru");
    let text = |more: &str| {
        format!(
            "server.state = \"state\"\n\
             device = [{{ name = \"under\", kind = \"file\", path = \"medium\", direct = false }}, \
             {more}]\n\
             volume = [{{ name = \"db\", backing = \"fast\" }}]\n"
        )
    };
    let stuck = text(
        "{ name = \"stuck\", kind = \"emulate\", on = \"under\", write_latency = \"1h\" }, \
         { name = \"fast\", kind = \"transit\", on = \"stuck\", capacity = \"1M\", policy = \
         \"lru\" }",
    );
    let stuck = Config::parse(&scratch.0.join("f.toml"), &stuck).expect("right");
    let report = run(async move {
        let stack = open_stack(&stuck).await.expect("opens");
        let db = stack.volume("db").expect("there").open();
        let data = Buf::zeroed(8192);
        data.fill(7);
        db.write(4096, data).await.expect("written");
        let closed = stack.close_within(Duration::from_millis(300)).await;
        let error = closed.expect_err("the device takes an hour");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        error.report()
    });
    let file = slots(&scratch);
    for part in [
        "volume \"db\": device \"fast\" (lru transit cache over file ",
        "medium, emulated",
        "has not ended its flush within 225 ms",
        "8 KiB of transit cache \"fast\"",
        &file.display().to_string(),
        "start again",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
    // Its report is true.
    assert_eq!(read_and_close(&config), 7);
    assert!(!file.exists());
}

/// An inode number is reused: slots of the deleted file do not count for the new one.
#[test]
fn slots_of_a_medium_that_is_gone_are_not_those_of_a_file_with_its_number() {
    let (scratch, config) = scratch("recreated", false, "lru");
    write_and_die(&config, 5);
    let mut info = medium(&scratch);
    let error = refuse_if_left(&info).expect_err("blocks are left");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert_ne!(info.identity.birth, 0, "this file system knows no births");
    info.identity.birth += 1;
    refuse_if_left(&info).expect("another one");
    assert_eq!(read_and_close(&config), 5);
}

/// One of two devices takes an hour: the other is flushed, and its slots are removed.
#[test]
fn a_device_that_hangs_at_the_end_takes_no_other_ones_time() {
    let (scratch, _) = scratch("beside", false, "lru");
    let beside = scratch.0.join("medium2");
    std::fs::copy(scratch.0.join("medium"), &beside).expect("copied");
    let text = "server.state = \"state\"\n\
         device = [\
         { name = \"under\", kind = \"file\", path = \"medium\", direct = false }, \
         { name = \"stuck\", kind = \"emulate\", on = \"under\", write_latency = \"1h\" }, \
         { name = \"hangs\", kind = \"transit\", on = \"stuck\", capacity = \"1M\", policy = \
         \"lru\" }, { name = \"sound\", kind = \"file\", path = \"medium2\", direct = false }, \
         { name = \"quick\", kind = \"transit\", on = \"sound\", capacity = \"1M\", policy = \
         \"lru\" }]\n\
         volume = [{ name = \"a\", backing = \"hangs\" }, { name = \"b\", backing = \"quick\" }]\n";
    let config = Config::parse(&scratch.0.join("f.toml"), text).expect("right");
    let (report, left) = run(async move {
        let stack = open_stack(&config).await.expect("opens");
        for name in ["a", "b"] {
            let volume = stack.volume(name).expect("there").open();
            let data = Buf::zeroed(8192);
            data.fill(7);
            volume.write(4096, data).await.expect("written");
        }
        let closed = stack.close_within(Duration::from_secs(3)).await;
        let left = std::fs::read(beside).expect("read")[4096];
        (closed.expect_err("one hangs").report(), left)
    });
    assert!(
        report.contains("volume \"a\"") && !report.contains("\"quick\""),
        "{report}"
    );
    assert_eq!(left, 7);
}

/// A cached volume is on a device that takes an hour, another volume on a transit cache. The latter
/// is flushed, and its slots are removed.
#[test]
fn a_cached_volume_that_hangs_at_the_end_leaves_transit_caches_their_time() {
    let (scratch, _) = scratch("cached", false, "lru");
    let beside = scratch.0.join("medium2");
    std::fs::copy(scratch.0.join("medium"), &beside).expect("copied");
    let text = "server.state = \"state\"\n\
         cache = { data = \"fast\", cleaning = \"nop\" }\n\
         device = [\
         { name = \"fast\", kind = \"mem\", size = \"32M\" }, \
         { name = \"under\", kind = \"file\", path = \"medium\", direct = false }, \
         { name = \"stuck\", kind = \"emulate\", on = \"under\", flush_latency = \"1h\" }, \
         { name = \"sound\", kind = \"file\", path = \"medium2\", direct = false }, \
         { name = \"quick\", kind = \"transit\", on = \"sound\", capacity = \"1M\", policy = \
         \"lru\" }]\n\
         volume = [{ name = \"a\", backing = \"stuck\" }, { name = \"b\", backing = \"quick\" }]\n";
    let config = Config::parse(&scratch.0.join("f.toml"), text).expect("right");
    let (report, left) = run(async move {
        let stack = open_stack(&config).await.expect("opens");
        for name in ["a", "b"] {
            let volume = stack.volume(name).expect("there").open();
            let data = Buf::zeroed(8192);
            data.fill(7);
            volume.write(4096, data).await.expect("written");
        }
        let closed = stack.close_within(Duration::from_secs(4)).await;
        let left = std::fs::read(beside).expect("read")[4096];
        (closed.expect_err("one hangs").report(), left)
    });
    assert!(!report.contains("\"quick\""), "{report}");
    assert_eq!(left, 7);
}

/// Slots over a device count for every device that overlaps it, at any offset, and for no other.
#[test]
fn slots_count_for_every_device_that_overlaps_theirs() {
    let (scratch, config) = scratch("parts", false, "lru");
    let state = scratch.0.join("state");
    write_and_die(&config, 5);
    let whole = medium(&scratch);
    let at = |start: u64, size_bytes: u64| {
        let mut part = whole.clone();
        part.identity.start = Some(start);
        part.size_bytes = size_bytes;
        part
    };
    let mut unknown = at(0, 4096);
    unknown.identity.start = None;
    let parts = [at(1 << 20, 1 << 20), at(31 << 20, 8 << 20), unknown];
    let mut former = at(1 << 20, 1 << 20);
    former.identity.birth += 1;
    let mut another = at(1 << 20, 1 << 20);
    another.identity.medium += 1;
    let strangers = [at(32 << 20, 1 << 20), at(1 << 40, 1 << 20), former, another];
    let file = slots(&scratch);
    for part in &parts {
        let error = refuse_if_left_in(&state, part).expect_err("blocks are left");
        assert_eq!(error.kind(), ErrorKind::Busy);
        let report = error.report();
        assert!(report.contains(&file.display().to_string()), "{report}");
    }
    for stranger in &strangers {
        refuse_if_left_in(&state, stranger).expect("it has nothing to do with them");
        refuse_if_gone(&state, stranger).expect("nor are any gone");
    }
    let copy = std::fs::read(&file).expect("there");
    std::fs::remove_file(&file).expect("there");
    for part in &parts {
        let error = refuse_if_gone(&state, part).expect_err("they are gone");
        assert_eq!(error.kind(), ErrorKind::Lost);
    }
    for stranger in &strangers[..2] {
        refuse_if_gone(&state, stranger).expect("it has nothing to do with them");
    }
    std::fs::write(&file, copy).expect("put back");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&file, mode).expect("its mode");
    assert_eq!(read_and_close(&config), 5);
}

/// A file of slots that another process holds is not written. A damaged header does not cause the
/// allocation of more memory than the file has.
#[test]
fn a_file_of_slots_is_looked_at_under_its_lock_and_as_far_as_it_goes() {
    let (scratch, config) = scratch("locked", false, "lru");
    write_and_die(&config, 5);
    let file = slots(&scratch);
    let sound = std::fs::read(&file).expect("there");
    let cut = || {
        let opened = std::fs::File::options().write(true).open(&file);
        let len = sound.len() as u64 - 4096;
        opened.expect("there").set_len(len).expect("cut");
    };
    let boot = boot_id().expect("known");
    cut();
    let held = hold_shared(&file).expect("nobody has it");
    let error = note_cut(&file, &boot, true).expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(std::fs::read(&file).expect("there") == sound[..sound.len() - 4096]);
    drop(held);
    note_cut(&file, &boot, true).expect("noted");
    let noted = std::fs::read(&file).expect("there");
    assert_eq!(noted.len(), sound.len());
    assert_ne!(noted[AT_CUT..AT_CUT + 8], [0; 8]);
    // 66 TB of headers.
    let mut damaged = sound.clone();
    damaged[32..40].copy_from_slice(&1_u64.to_le_bytes());
    damaged[40..48].copy_from_slice(&(1_u64 << 41).to_le_bytes());
    std::fs::write(&file, damaged).expect("written");
    let found = look_for_cut(&file, &boot).expect("it can be read");
    assert!(found.is_some(), "it is too short for them");
    std::fs::write(&file, sound).expect("written");
    assert_eq!(read_and_close(&config), 5);
}

/// A directory at the path of the slots stops a transit cache, but no volume without one.
#[test]
fn a_directory_in_place_of_slots_stops_a_transit_cache_alone() {
    let (scratch, config) = scratch("directory", false, "lru");
    let file = slots(&scratch);
    std::fs::create_dir(&file).expect("made");
    let refused = run({
        let config = config.clone();
        async move { open_stack(&config).await.map(drop) }
    });
    let report = refused.expect_err("there is no room for slots").report();
    assert!(report.contains(&file.display().to_string()), "{report}");
    let plain = "server.state = \"state\"\n\
         device = [{ name = \"under\", kind = \"file\", path = \"medium\", direct = false }]\n\
         volume = [{ name = \"db\", backing = \"under\" }]\n";
    let plain = Config::parse(&config.path, plain).expect("right");
    assert_eq!(read_and_close(&plain), 0);
    std::fs::remove_dir(&file).expect("ours");
}
