//! Shared parts of the tests of the whole stack. The tests are in the folders beside this file.

pub mod client;
pub mod stamp;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the path of the `forebay` program: `FOREBAY_BIN`, or built from this workspace beside
/// the tests.
///
/// # Panics
/// Panics if it cannot be built.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(path) = std::env::var_os("FOREBAY_BIN") {
            return path.into();
        }
        // Tests lie in target/PROFILE/deps, programs in target/PROFILE.
        let test = std::env::current_exe().expect("the test knows its own path");
        let folder = test.ancestors().nth(2).expect("two folders up");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--profile=test", "--workspace"])
            .arg("--bin=forebay")
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env("CARGO_TARGET_DIR", folder.parent().expect("target"))
            .status()
            .expect("cargo runs");
        assert!(status.success(), "cargo build: {status}");
        folder.join("forebay")
    })
}
