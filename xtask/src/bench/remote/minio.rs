//! An S3 server on the loopback interface, with its objects in memory: MinIO.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use forebay_testkit::s3_server::{SECRET, USER, credentials};

use super::SET_BYTES;
use crate::bench::Outcome;
use crate::bench::server::{Scratch, Server, free_port};

const BUCKET: &str = "bucket";

/// A server with a bucket. It is killed on drop.
pub(super) struct Minio {
    _server: Server,
    port: u16,
    /// File with the credentials, as Forebay reads them.
    secret: PathBuf,
    /// File with the credentials, as s3backer reads them.
    access: PathBuf,
    /// Directory for sockets, logs and mountpoints of clients.
    pub(super) place: PathBuf,
}

impl Minio {
    /// Starts a server on processor `cpu`.
    pub(super) fn start(scratch: &Scratch, cpu: &str) -> Outcome<Self> {
        let (data, port) = (scratch.path("data"), free_port()?);
        let failed = |error: std::io::Error| format!("{}: {error}", data.display());
        std::fs::create_dir_all(data.join(BUCKET)).map_err(failed)?;
        let mut command = Command::new("minio");
        command.args(["server", "--quiet", "--address"]);
        command.arg(format!("127.0.0.1:{port}")).arg(&data);
        command.env("MINIO_ROOT_USER", USER);
        command.env("MINIO_ROOT_PASSWORD", SECRET);
        command.env("MINIO_BROWSER", "off");
        command.env("MINIO_UPDATE", "off");
        command.env("HOME", scratch.path(""));
        let log = scratch.path("minio.log");
        let server = Server::start_tcp(&command, Some(cpu), port, &log)?;
        let secret = |name: &str, contents: &str| {
            let path = scratch.path(name);
            let private = std::fs::Permissions::from_mode(0o600);
            let written = std::fs::write(&path, contents)
                .and_then(|()| std::fs::set_permissions(&path, private));
            written.map_err(failed).map(|()| path)
        };
        Ok(Self {
            _server: server,
            port,
            secret: secret("secret", &credentials())?,
            access: secret("access", &format!("{USER}:{SECRET}\n"))?,
            place: scratch.path(""),
        })
    }

    /// Returns the keys of a device of Forebay in a folder of the bucket.
    pub(super) fn device(&self, folder: &str) -> String {
        format!(
            "kind = \"object\"\nurl = \"s3://{BUCKET}/{folder}\"\nendpoint = \"{}\"\n\
             credentials = \"{}\"\nsize = {SET_BYTES}",
            self.endpoint(),
            self.secret.display()
        )
    }

    /// Returns the options of s3backer for a folder of the bucket, and the bucket.
    pub(super) fn backer(&self, folder: &str) -> Vec<String> {
        vec![
            format!("--baseURL={}/", self.endpoint()),
            format!("--accessFile={}", self.access.display()),
            format!("--prefix={folder}/"),
            BUCKET.into(),
        ]
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}
