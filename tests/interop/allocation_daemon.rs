//! Block status of the `forebay` program with its cache, compared with the backing file.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::allocation::nbdinfo_map;
use crate::clients::text;
use crate::daemon::{CONFIG, Daemon};
use crate::programs::{nbdsh, requires, requires_nbdsh, run};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 128 * MIB;

fn has_all_programs() -> bool {
    requires("nbdinfo", "libnbd-bin") && requires("qemu-img", "qemu-utils") && requires_nbdsh()
}

/// Returns the map of a file by `qemu-img`, as the end and the type of each extent.
fn file_map(path: &Path) -> Vec<(u64, u32)> {
    let options = ["map", "-U", "--output=json", "-f", "raw"];
    let words = run("qemu-img", &[&options[..], &[text(path)]].concat());
    let parts: serde_json::Value = serde_json::from_str(&words).expect("JSON");
    let mut map: Vec<(u64, u32)> = Vec::new();
    for part in parts.as_array().expect("a list") {
        let number = |key: &str| part[key].as_u64().expect("a number");
        let end = number("start") + number("length");
        let kind = if part["zero"] == true { 3 } else { 0 };
        match map.last_mut() {
            Some(last) if last.1 == kind => last.0 = end,
            _ => map.push((end, kind)),
        }
    }
    map
}

/// Returns the bytes that were read from a device.
fn bytes_read(daemon: &Daemon, device: &str) -> u64 {
    let status = daemon.status();
    let devices = status["devices"].as_array().expect("a list");
    let found = devices.iter().find(|found| found["name"] == device);
    let bytes = &found.expect("it is there")["read_bytes"];
    bytes.as_u64().expect("a number")
}

/// Writes everything back that is dirty.
fn write_back(daemon: &Daemon) {
    daemon.ok(&["flush", "disk"]);
}

/// Reads the whole volume into a file. `nbdcopy` would not read its holes.
fn read_all(uri: &str, copy: &Path) {
    let read = format!(
        "
h.connect_uri(uri)
with open({copy:?}, 'wb') as copy:
    for at in range(0, h.get_size(), 16 << 20):
        copy.write(h.pread(16 << 20, at))
h.shutdown()
"
    );
    nbdsh(uri, &read);
}

/// Checks that each extent of zeroes is zeroes, in a copy of the volume.
fn check_content(map: &[(u64, u32)], content: &[u8]) {
    let mut start = 0;
    for (end, kind) in map {
        let part = start..usize::try_from(*end).expect("small");
        start = part.end;
        let is_zero = content[part.clone()].iter().all(|&byte| byte == 0);
        assert!(*kind == 0 || is_zero, "data at {part:?} is called {kind}");
    }
    assert_eq!(start, content.len());
}

#[test]
fn the_map_of_a_cached_volume_follows_writes_discards_and_zeroes() {
    if !has_all_programs() {
        return;
    }
    for mode in ["wb", "wt", "wa"] {
        // Nothing is written back by itself.
        let config = CONFIG
            .replace("\"wb\"", &format!("\"{mode}\""))
            .replace("[cache]", "[cache]\ncleaning = \"nop\"");
        let mut daemon = Daemon::prepared(&format!("map-{mode}"), &config);
        std::fs::remove_file(daemon.path("backing")).expect("there");
        daemon.create_file("backing", SIZE);
        daemon.start();
        let (uri, backing) = (daemon.uri(), daemon.path("backing"));
        let copy = daemon.path("copy");
        assert_eq!(nbdinfo_map(&uri), [(SIZE, 3)], "{mode}");
        let check = |sparse: &[(u64, u32)]| {
            let map = nbdinfo_map(&uri);
            assert_eq!(map, sparse, "{mode}");
            read_all(&uri, &copy);
            check_content(&map, &std::fs::read(&copy).expect("a copy"));
        };
        // Dirty data is data although the backing file has a hole there.
        nbdsh(
            &uri,
            "
h.connect_uri(uri)
m = 1 << 20
for at in (8*m, 20*m, 40*m):
    h.pwrite(b'x' * m, at)
h.pwrite(b'x' * 65536, 60*m + 65536)
h.flush()
h.shutdown()
",
        );
        let written = [
            (8 * MIB, 3),
            (9 * MIB, 0),
            (20 * MIB, 3),
            (21 * MIB, 0),
            (40 * MIB, 3),
            (41 * MIB, 0),
            (60 * MIB + 65536, 3),
            (60 * MIB + 131_072, 0),
            (SIZE, 3),
        ];
        if mode == "wb" {
            assert_eq!(nbdinfo_map(&uri), written);
            assert_eq!(file_map(&backing), [(SIZE, 3)], "nothing is written back");
            // Reading all of it evicts some.
            check(&written);
        } else {
            check(&file_map(&backing));
        }
        write_back(&daemon);
        // The file system may allocate more than was written.
        let present = file_map(&backing);
        assert!(present.contains(&(41 * MIB, 0)), "{mode}: {present:?}");
        check(&present);
        // Discards and zeroes, of cached data, in the middle of it and where nothing is.
        nbdsh(
            &uri,
            "
h.connect_uri(uri)
m = 1 << 20
h.trim(m // 2, 20*m)
h.zero(m // 4, 40*m + m // 2)
h.zero(m, 100*m, nbd.CMD_FLAG_NO_HOLE)
h.pwrite(bytearray(65536), 120*m)
h.pwrite(b'y' * 4096, 8*m + 4096)
h.flush()
h.shutdown()
",
        );
        write_back(&daemon);
        let expected = file_map(&backing);
        assert!(expected.contains(&(20 * MIB + MIB / 2, 3)), "{expected:?}");
        check(&expected);
        daemon.stop();
        assert!(std::fs::read(&copy).expect("a copy") == std::fs::read(&backing).expect("ours"));
    }
}

#[test]
fn a_copy_of_a_sparse_cached_volume_reads_its_data_alone() {
    if !has_all_programs() {
        return;
    }
    let mut daemon = Daemon::prepared("sparse-copy", CONFIG);
    std::fs::remove_file(daemon.path("backing")).expect("there");
    daemon.create_file("backing", 1 << 40);
    daemon.start();
    let (uri, copy) = (daemon.uri(), daemon.path("copy"));
    let before = bytes_read(&daemon, "slow");
    let convert = ["convert", "-f", "raw", "-O", "raw", &uri, text(&copy)];
    run("qemu-img", &convert);
    assert_eq!(bytes_read(&daemon, "slow"), before);
    let sparse = |path: &Path| {
        use std::os::unix::fs::MetadataExt as _;
        let found = std::fs::metadata(path).expect("there");
        (found.len(), found.blocks() * 512 / MIB)
    };
    assert_eq!(sparse(&copy), (1 << 40, 0));
    // 81 MiB in pieces, a part of which is dirty in the cache.
    nbdsh(
        &uri,
        "
h.connect_uri(uri)
for piece in range(81):
    h.pwrite(b'z' * (1 << 20), piece * (11 << 30) + (piece << 16))
h.shutdown()
",
    );
    run("qemu-img", &convert);
    let (len, mib) = sparse(&copy);
    assert!(len == 1 << 40 && (81..=85).contains(&mib), "{mib} MiB");
    assert!(bytes_read(&daemon, "slow") - before < 100 * MIB);
    daemon.stop();
}

/// A server of another project; ended when dropped.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that makes `socket`.
fn serve(program: &str, arguments: &[&str], socket: &Path) -> Foreign {
    let mut command = Command::new(program);
    let child = command.args(arguments).stderr(Stdio::null()).spawn();
    let server = Foreign(child.expect("it is installed"));
    let begin = Instant::now();
    while !socket.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no socket");
        std::thread::sleep(Duration::from_millis(5));
    }
    server
}

#[test]
fn an_nbd_backing_device_tells_the_map_of_its_server() {
    if !has_all_programs() {
        return;
    }
    for program in ["qemu-nbd", "nbdkit", "nbdkit-memory"] {
        if !requires(program.trim_end_matches("-memory"), "qemu-utils nbdkit") {
            continue;
        }
        let device = "kind = \"file\"\npath = \"backing\"";
        let mut daemon = Daemon::prepared(&format!("map-{program}"), CONFIG);
        let (socket, image) = (daemon.path("far.sock"), daemon.path("far"));
        let uri = format!("nbd+unix:///?socket={}", text(&socket));
        let far = format!("kind = \"nbd\"\nuri = \"{uri}\"");
        daemon.write_config(&CONFIG.replace(device, &far));
        daemon.create_file("far", SIZE);
        let nbdkit = ["-f", "-U", text(&socket)];
        let server = match program {
            "nbdkit-memory" => serve(
                "nbdkit",
                &[&nbdkit[..], &["memory", "128M"]].concat(),
                &socket,
            ),
            "nbdkit" => serve(
                program,
                &[&nbdkit[..], &["file", text(&image)]].concat(),
                &socket,
            ),
            _ => {
                let options = ["--persistent", "--shared=0", "--format", "raw", "--socket"];
                let own = [text(&socket), "--discard=unmap", text(&image)];
                serve(program, &[&options[..], &own].concat(), &socket)
            }
        };
        daemon.start();
        let near = daemon.uri();
        assert_eq!(nbdinfo_map(&near), [(SIZE, 3)], "{program}");
        nbdsh(
            &near,
            "
h.connect_uri(uri)
m = 1 << 20
for at in (8*m, 50*m, 100*m):
    h.pwrite(b'x' * m, at)
h.shutdown()
",
        );
        let dirty = nbdinfo_map(&near);
        assert!(
            dirty.contains(&(9 * MIB, 0)) && dirty.len() == 7,
            "{dirty:?}"
        );
        write_back(&daemon);
        nbdsh(
            &near,
            "h.connect_uri(uri)\nh.trim(1 << 20, 50 << 20)\nh.flush()\nh.shutdown()",
        );
        assert_eq!(nbdinfo_map(&near), nbdinfo_map(&uri), "{program}");
        assert_eq!(nbdinfo_map(&near).len(), 5, "{program}");
        daemon.stop();
        drop(server);
    }
}
