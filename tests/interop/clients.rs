//! Real clients: libnbd's tools and Python, QEMU's, fio.

use std::path::Path;

use forebay_block::Op;
use forebay_io::Engine;

use crate::programs::{nbdsh, requires, requires_fio, requires_nbdsh, run};
use crate::server::{Server, Setup};

/// Returns all ways to build a server.
pub(crate) fn every_setup() -> [Setup; 4] {
    let local = Setup::default();
    let threads = Setup {
        engine: Engine::Threads,
        ..local
    };
    let apart = |setup: Setup| Setup {
        apart: true,
        ..setup
    };
    [local, threads, apart(local), apart(threads)]
}

/// Writes a file of bytes that do not repeat.
pub(crate) fn noise(path: &Path, len: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut data = Vec::with_capacity(len);
    while data.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        data.extend_from_slice(&state.to_le_bytes());
    }
    data.truncate(len);
    std::fs::write(path, &data).expect("room in the temporary folder");
    data
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn nbdinfo_lists_exports_and_their_properties() {
    if !requires("nbdinfo", "libnbd-bin") {
        return;
    }
    let server = Server::start(Setup::default());
    let all = run("nbdinfo", &["--list", "--json", &server.uri("")]);
    for expected in [
        r#""export-name": "disk""#,
        r#""export-name": "sealed""#,
        r#""description": "a test disk""#,
        r#""export-size": 67108864"#,
        r#""can_multi_conn": true"#,
        r#""can_fua": true"#,
        r#""can_df": true"#,
        r#""can_cache": true"#,
        r#""can_trim": true"#,
        r#""can_zero": true"#,
        r#""can_fast_zero": false"#,
        r#""block_minimum": 512"#,
        r#""block_preferred": 4096"#,
        r#""block_maximum": 33554432"#,
    ] {
        let expected = expected.replace("\"block_", "\"block_size_");
        assert!(all.contains(&expected), "{expected} in {all}");
    }
    let size = run("nbdinfo", &["--size", &server.tcp_uri("")]);
    assert_eq!(size.trim(), "67108864");
    let sealed = run("nbdinfo", &["--is", "read-only", &server.uri("sealed")]);
    assert_eq!(sealed, "");
}

#[test]
fn nbdcopy_reads_written_data_back() {
    if !requires("nbdcopy", "libnbd-bin") {
        return;
    }
    for setup in every_setup() {
        let server = Server::start(setup);
        let (source, back) = (server.folder().join("source"), server.folder().join("back"));
        let data = noise(&source, 64 << 20);
        for uri in [server.uri("disk"), server.tcp_uri("disk")] {
            run("nbdcopy", &["--flush", text(&source), &uri]);
            run("nbdcopy", &[&uri, text(&back)]);
            assert!(std::fs::read(&back).expect("a file") == data, "{setup:?}");
            run(
                "nbdcopy",
                &["--connections=1", "--request-size=65536", &uri, text(&back)],
            );
            assert!(std::fs::read(&back).expect("a file") == data, "{setup:?}");
        }
        assert!(server.take_log().iter().any(|entry| entry.0 == Op::Flush));
    }
}

#[test]
fn libnbd_uses_every_command() {
    if !requires_nbdsh() {
        return;
    }
    for setup in every_setup() {
        let server = Server::start(setup);
        nbdsh(
            &server.uri("disk"),
            r#"
h.connect_uri(uri)
assert h.get_structured_replies_negotiated()
h.pwrite(b"a" * 4096, 0)
h.pwrite(b"b" * 4096, 4096, nbd.CMD_FLAG_FUA)
assert h.pread(8192, 0) == b"a" * 4096 + b"b" * 4096
h.flush()
h.zero(4096, 0)
h.zero(4096, 4096, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
assert h.pread(8192, 0) == bytearray(8192)
h.trim(1 << 20, 1 << 20, nbd.CMD_FLAG_FUA)
h.cache(8 << 20, 0)
chunks = []
def chunk(data, offset, status, error):
    assert status == nbd.READ_DATA
    chunks.append((offset, len(data)))
h.pwrite(b"c" * 65536, 65536)
assert h.pread_structured(65536, 65536, chunk, nbd.CMD_FLAG_DF) == b"c" * 65536
assert chunks == [(65536, 65536)]
h.pwrite(b"d" * (32 << 20), 0)
assert h.pread(32 << 20, 0) == b"d" * (32 << 20)
h.shutdown()
"#,
        );
        let write = |fua| Op::Write { fua };
        let zeroes = |fua, unmap| Op::WriteZeroes { fua, unmap };
        assert_eq!(
            server.take_log(),
            [
                (write(false), 0, 4096),
                (write(true), 4096, 4096),
                (Op::Flush, 0, 0),
                (zeroes(false, true), 0, 4096),
                (zeroes(true, false), 4096, 4096),
                (Op::Discard, 1 << 20, 1 << 20),
                (Op::Flush, 0, 0),
                (write(false), 65536, 65536),
                (write(false), 0, 32 << 20),
            ],
            "{setup:?}"
        );
        assert!(server.disk.stats().read.bytes >= 8 << 20, "cache reads");
    }
}

#[test]
fn a_flush_on_one_connection_follows_the_writes_of_another() {
    if !requires_nbdsh() {
        return;
    }
    for setup in every_setup() {
        let server = Server::start(setup);
        nbdsh(
            &server.uri("disk"),
            r#"
h.connect_uri(uri)
other = nbd.NBD()
other.connect_uri(uri)
assert h.can_multi_conn() and other.can_multi_conn()
for i in range(100):
    h.pwrite(b"x" * 512, i * 512)
    other.flush()
    assert other.pread(512, i * 512) == b"x" * 512
h.shutdown()
other.shutdown()
"#,
        );
        let log = server.take_log();
        assert_eq!(log.len(), 200, "{setup:?}");
        for (at, pair) in log.chunks(2).enumerate() {
            assert_eq!(pair[0], (Op::Write { fua: false }, at as u64 * 512, 512));
            assert_eq!(pair[1].0, Op::Flush, "{setup:?}");
        }
    }
}

#[test]
fn clients_without_structured_replies_and_go_are_served() {
    if !requires_nbdsh() {
        return;
    }
    let server = Server::start(Setup::default());
    nbdsh(
        &server.uri("disk"),
        r#"
h.set_request_structured_replies(False)
h.set_handshake_flags(0)
h.connect_uri(uri)
assert not h.get_structured_replies_negotiated()
assert not h.can_df()
h.pwrite(b"s" * 4096, 4096)
assert h.pread(8192, 0) == bytearray(4096) + b"s" * 4096
h.shutdown()
"#,
    );
}

#[test]
fn errors_are_the_protocols_own() {
    if !requires_nbdsh() {
        return;
    }
    let server = Server::start(Setup::default());
    nbdsh(
        &server.uri("disk"),
        r#"
import errno
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
        return
    assert False, "it succeeded"
h.set_strict_mode(0)
h.connect_uri(uri)
end = h.get_size()
for structured in (True, False):
    h = nbd.NBD()
    h.set_strict_mode(0)
    h.set_request_structured_replies(structured)
    h.connect_uri(uri)
    fails(errno.EINVAL, lambda: h.pread(4096, end))
    fails(errno.ENOSPC, lambda: h.pwrite(b"x" * 4096, end))
    fails(errno.ENOSPC, lambda: h.zero(4096, end - 512))
    fails(errno.EINVAL, lambda: h.pread(512, 1))
    fails(errno.EINVAL, lambda: h.pwrite(b"x" * 511, 0))
    fails(errno.EINVAL, lambda: h.cache(4096, end))
    fails(errno.EINVAL, lambda: h.pread(4096, 0, nbd.CMD_FLAG_NO_HOLE))
    fails(errno.EINVAL, lambda: h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO))
    h.pread(512, end - 512)
    h.shutdown()
"#,
    );
    let wrong = "
def fails(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, (error.errnum, number)
        return
    assert False, 'it succeeded'
import errno
h.set_strict_mode(0)
h.connect_uri(uri)
";
    let sealed = "
assert h.is_read_only()
for call in (lambda: h.pwrite(b'x' * 512, 0), lambda: h.trim(512, 0), lambda: h.zero(512, 0)):
    fails(errno.EPERM, call)
h.pread(512, 0)
h.flush()
";
    nbdsh(&server.uri("sealed"), &format!("{wrong}{sealed}"));
    assert!(
        !server.take_log().iter().any(|(op, _, _)| *op != Op::Flush),
        "nothing that was refused reached the device"
    );
    server.drain();
    let drained = "
fails(errno.ESHUTDOWN, lambda: h.pread(512, 0))
fails(errno.ESHUTDOWN, lambda: h.pwrite(b'x' * 512, 0))
";
    nbdsh(&server.uri("disk"), &format!("{wrong}{drained}"));
}

#[test]
fn qemu_img_converts_both_ways() {
    if !requires("qemu-img", "qemu-utils") {
        return;
    }
    let server = Server::start(Setup::default());
    let (source, back) = (server.folder().join("source"), server.folder().join("back"));
    let data = noise(&source, 64 << 20);
    let uri = server.uri("disk");
    let into = [
        "convert",
        "-n",
        "-f",
        "raw",
        "-O",
        "raw",
        text(&source),
        &uri,
    ];
    run("qemu-img", &into);
    run(
        "qemu-img",
        &["convert", "-f", "raw", "-O", "raw", &uri, text(&back)],
    );
    assert!(std::fs::read(&back).expect("a file") == data);
    let info = run("qemu-img", &["info", &server.tcp_uri("disk")]);
    assert!(info.contains("64 MiB"), "{info}");
}

#[test]
fn qemu_io_writes_zeroes_and_reads_patterns() {
    if !requires("qemu-io", "qemu-utils") {
        return;
    }
    let server = Server::start(Setup::default());
    let uri = server.uri("disk");
    let commands = [
        "write -P 0x5a 0 1M",
        "write -f -P 0x5b 64k 64k",
        "read -P 0x5a 0 64k",
        "read -P 0x5b 64k 64k",
        "write -z 0 32k",
        "write -z -u 32k 32k",
        "read -P 0 0 64k",
        "aio_write -P 0x11 2M 256k",
        "aio_write -P 0x12 3M 256k",
        "aio_flush",
        "read -P 0x11 2M 256k",
        "read -P 0x12 3M 256k",
        "discard 8M 1M",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw", "--cache=writeback"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let said = run("qemu-io", &arguments);
    assert!(!said.contains("failed"), "{said}");
    let log = server.take_log();
    let has = |op| log.iter().any(|entry| entry.0 == op);
    assert!(has(Op::Write { fua: true }), "{log:?}");
    assert!(has(Op::Flush) && has(Op::Discard), "{log:?}");
    let zeroes = |unmap| Op::WriteZeroes { fua: false, unmap };
    assert!(has(zeroes(false)) && has(zeroes(true)), "{log:?}");
}

#[test]
fn fio_verifies_written_data() {
    if !requires_fio() {
        return;
    }
    for setup in every_setup() {
        let server = Server::start(setup);
        for uri in [server.uri("disk"), server.tcp_uri("disk")] {
            let uri = format!("--uri={uri}");
            let mut arguments = vec!["--name=verify", "--ioengine=nbd", "--rw=randrw"];
            arguments.extend(["--bsrange=512-256k", "--bsrange=4k-128k", "--iodepth=32"]);
            arguments.extend(["--size=64M", "--verify=crc32c", "--verify_fatal=1"]);
            arguments.extend(["--fsync=64", "--output-format=terse", &uri]);
            let folder = format!("--aux-path={}", text(server.folder()));
            arguments.push(&folder);
            run("fio", &arguments);
        }
        let log = server.take_log();
        assert!(log.iter().any(|entry| entry.0 == Op::Flush), "{setup:?}");
    }
}
