//! A real S3 server on the loopback interface: MinIO, if it is installed.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::daemon::{PATIENCE, Process, Scratch};

/// Name of the user, and of the access key.
pub const USER: &str = "forebay-test";
/// Password of the user, and the secret key.
pub const SECRET: &str = "not-to-be-shown-anywhere";

/// A server with a bucket `bucket`. It ends when this is dropped.
#[derive(Debug)]
pub struct S3Server {
    scratch: Scratch,
    address: SocketAddr,
    process: Option<Process>,
}

impl S3Server {
    /// Starts a server. Returns `None`, and reports a skip, if there is none.
    ///
    /// # Panics
    /// Panics if it does not start.
    #[must_use]
    pub fn start(name: &str) -> Option<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|at| at.join("minio").is_file()) {
            eprintln!("SKIPPED: minio is not installed (scripts/minio.sh builds it)");
            return None;
        }
        let scratch = Scratch::new(name);
        std::fs::create_dir_all(scratch.path("data/bucket")).expect("a bucket is a directory");
        let address = {
            let any = TcpListener::bind("127.0.0.1:0").expect("a port");
            any.local_addr().expect("its number")
        };
        let mut this = Self {
            scratch,
            address,
            process: None,
        };
        this.restart();
        Some(this)
    }

    /// Starts the server at the same address after [`S3Server::kill`].
    ///
    /// # Panics
    /// Panics if it does not start.
    pub fn restart(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log());
        let mut command = Command::new("minio");
        command
            .args(["server", "--quiet", "--address", &self.address.to_string()])
            .arg(self.scratch.path("data"))
            .env("MINIO_ROOT_USER", USER)
            .env("MINIO_ROOT_PASSWORD", SECRET)
            .env("MINIO_BROWSER", "off")
            .env("MINIO_UPDATE", "off")
            .env("HOME", self.scratch.directory())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a new file"));
        self.process = Some(Process::spawn(&mut command));
        let begin = Instant::now();
        while !self.is_ready() {
            let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(
                begin.elapsed() < PATIENCE,
                "minio does not start: {}",
                log()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills the server. Its data stays.
    ///
    /// # Panics
    /// Panics if it does not run.
    pub fn kill(&mut self) {
        self.process.take().expect("it runs").kill();
    }

    /// Sends a signal, such as `SIGSTOP`.
    ///
    /// # Panics
    /// Panics if it does not run.
    pub fn signal(&self, signal: libc::c_int) {
        self.process.as_ref().expect("it runs").signal(signal);
    }

    /// Returns its URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Writes the file with its credentials, and returns the path.
    ///
    /// # Panics
    /// Panics if it cannot be written.
    #[must_use]
    pub fn credentials(&self) -> PathBuf {
        use std::os::unix::fs::OpenOptionsExt as _;
        let path = self.scratch.path("secret");
        let mut options = std::fs::File::options();
        let options = options.create(true).truncate(true).write(true).mode(0o600);
        let mut file = options.open(&path).expect("a new file");
        file.write_all(credentials().as_bytes()).expect("written");
        path
    }

    fn log(&self) -> PathBuf {
        self.scratch.path("log")
    }

    /// Returns whether it serves requests. Its own `health/ready` is good before that.
    fn is_ready(&self) -> bool {
        let asked = TcpStream::connect(self.address).and_then(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            stream.write_all(b"GET /minio/health/cluster HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        });
        asked.is_ok_and(|answer| answer.starts_with("HTTP/1.0 200"))
    }
}

/// Returns the contents of a file with the credentials of each server.
#[must_use]
pub fn credentials() -> String {
    format!("aws_access_key_id = {USER}\naws_secret_access_key = {SECRET}\n")
}
