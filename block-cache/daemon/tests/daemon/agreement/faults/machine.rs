//! Obstacles on this machine, and faults of a backing device.

use std::fs::File;

use super::Part::{Backing, Export, Server, State, Volume};
use super::{
    Fault, add, any, backing, change, hold, lived, on_a_file, put_directory, put_file, put_pipe,
    remove, replace, set_len,
};

pub(super) const FAULTS: &[Fault] = &[
    // Obstacles on this machine.
    Fault::new(
        "a file for the control socket",
        Server,
        any,
        |p| put_file(&p.path("control.sock"), 0o600),
        &["control socket"],
    )
    .sample(),
    Fault::new(
        "another daemon on the control socket",
        Server,
        any,
        |p| Some(Box::new(p.start_another())),
        &["a daemon answers on the control socket"],
    )
    .sample(),
    Fault::new(
        "one path for two",
        Server,
        any,
        |p| change(p, "control.sock", "state"),
        &["are both"],
    ),
    Fault::new(
        "a socket under a file",
        Export,
        any,
        |p| change(p, "nbd.sock", "db.img/nbd.sock"),
        &["not a directory"],
    ),
    Fault::new(
        "a file for the export's socket",
        Export,
        any,
        |p| put_file(&p.path("nbd.sock"), 0o600),
        &["exists there that is not a socket"],
    ),
    Fault::new(
        "a file for a machine's socket",
        Export,
        any,
        |p| {
            change(p, "nbd = \"unix:nbd.sock\"", "vhost-user-blk = \"vm.sock\"");
            put_file(&p.path("vm.sock"), 0o600)
        },
        &["exists there that is not a socket"],
    ),
    Fault::new(
        "the mount point of a file",
        Export,
        any,
        |p| change(p, "nbd = \"unix:nbd.sock\"", "fuse = \".\""),
        &["directory", "FUSE", "mount"],
    ),
    Fault::new(
        "no certificate",
        Export,
        any,
        |p| {
            add(
                p,
                "[[export]]",
                "tls_certificate = \"no.pem\"\ntls_key = \"no.key\"",
            )
        },
        &["cannot read the certificate"],
    )
    .sample(),
    Fault::new(
        "secrets for all",
        Export,
        any,
        |p| {
            change(
                p,
                "nbd = \"unix:nbd.sock\"",
                "nvme-tcp = \"127.0.0.1:0\"\nnqn = \"nqn.2026-11.io.forebay:db\"\n\
                 secrets = \"secrets\"",
            );
            put_file(&p.path("secrets"), 0o644)
        },
        &["0644"],
    ),
    Fault::new(
        "no secrets",
        Export,
        any,
        |p| {
            change(
                p,
                "nbd = \"unix:nbd.sock\"",
                "nvme-tcp = \"127.0.0.1:0\"\nnqn = \"nqn.2026-11.io.forebay:db\"\nsecrets = \"no\"",
            )
        },
        &["the secrets"],
    ),
    Fault::new(
        "a port that is taken",
        Server,
        any,
        |p| {
            let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = taken.local_addr().expect("bound").port();
            change(p, "127.0.0.1:0", &format!("127.0.0.1:{port}"));
            Some(Box::new(taken))
        },
        &["is in use"],
    )
    .sample(),
    Fault::new(
        "a file for the state",
        State,
        any,
        |p| put_file(&p.path("state"), 0o600),
        &["state directory"],
    )
    .sample(),
    Fault::new(
        "the state of another daemon",
        State,
        any,
        |p| {
            std::fs::create_dir_all(p.path("state")).expect("made");
            drop(File::create(p.path("state/lock")).expect("made"));
            hold(&p.path("state/lock"))
        },
        &["is held by another daemon"],
    ),
    // The backing device.
    Fault::new(
        "no backing file",
        Backing,
        any,
        |p| {
            remove(&backing(p));
            None
        },
        &["does not exist"],
    )
    .sample(),
    Fault::new(
        "a directory for the backing file",
        Backing,
        any,
        |p| put_directory(&backing(p)),
        &["is a directory"],
    ),
    Fault::new(
        "a pipe for the backing file",
        Backing,
        any,
        |p| put_pipe(&backing(p)),
        &["is a named pipe"],
    ),
    Fault::new(
        "an empty backing file",
        Backing,
        any,
        |p| set_len(&backing(p), 0),
        &["has 0 bytes"],
    ),
    Fault::new(
        "a backing file that is held",
        Backing,
        any,
        |p| hold(&backing(p)),
        &["holds a lock on it"],
    )
    .sample(),
    Fault::new(
        "the cache as backing file",
        Backing,
        on_a_file,
        |p| change(p, "\"db.img\"", "\"./cache\""),
        &["one and the same"],
    ),
    Fault::new(
        "another backing file",
        Backing,
        lived,
        |p| replace(&backing(p)),
        &["another", "different", "identity"],
    ),
    Fault::new(
        "a backing file that was cut",
        Backing,
        lived,
        |p| set_len(&backing(p), 1 << 20),
        &["beyond", "dirty"],
    ),
    Fault::new(
        "a volume of another name",
        Volume,
        lived,
        |p| {
            change(p, "name = \"db\"", "name = \"dc\"");
            change(p, "volume = \"db\"", "volume = \"dc\"")
        },
        &["db"],
    )
    .also(Export),
];
