//! Drives the `forebay` program from outside: files, configuration, daemon and clients.
//!
//! - [`Scratch`]: a directory that is removed on drop.
//! - [`Site`]: a scratch directory with a configuration, and the program that runs there.
//! - [`ServeCommand`]: a command line of `forebay serve`.
//! - [`Daemon`]: the running daemon, killed on drop.
//! - [`Process`]: a child process, killed on drop.
//! - [`nbd`]: a blocking NBD client.
//!
//! The caller passes the path of the program. All failures are panics, as tests want them.

pub mod nbd;
mod process;
mod refusal;
mod running;
mod scratch;
mod serve_command;
mod site;

use std::time::{Duration, Instant};

pub use process::{Process, in_group};
pub use refusal::{check_refusal, unwrapped};
pub use running::Daemon;
pub use scratch::Scratch;
pub use serve_command::ServeCommand;
pub use site::Site;

/// Longest wait for anything that the program does.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Time between two checks of a file or a process.
const POLL: Duration = Duration::from_millis(2);

/// Waits until `done` returns true, for at most [`PATIENCE`]. Sleeps for `poll` between two calls.
///
/// # Panics
/// Panics with the text of `describe` if the time is over.
fn wait_until(poll: Duration, mut done: impl FnMut() -> bool, describe: impl Fn() -> String) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < PATIENCE, "{}", describe());
        std::thread::sleep(poll);
    }
}
