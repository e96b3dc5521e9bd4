//! Model disk, workload generator, crash-point driver and checkers.
//!
//! - [`stamp`]: contents that name the write which they came from.
//! - [`model`]: the contents that a read may return, live and after each kind of crash.
//! - [`workload`]: seeded clients that drive volumes and report to the model.
//! - [`stack`]: the interface between a test's stack and the drivers.
//! - [`machine`]: simulated devices, a stack on them and the model, through lives and crashes.
//! - [`crash`]: the drivers: every crash point of one workload, every failure of one operation, and
//!   random lives by seed.
//! - [`depth`]: the number of crashes that a sweep tries.
//! - [`rot`]: random lives on devices whose contents rot.
//! - [`rotation`]: the random lives, and the slice of each sweep, that a run takes.
//! - [`traces`]: references to blocks, generated or from real traces.
//! - [`case`]: one run of a driver as text, so that one command replays a failure.
//! - `authority`: certificates for tests of TLS.
//! - [`s3_server`]: a real S3 server.
//! - [`daemon`]: the program from outside: its files, its daemon and its clients.

mod alike;
#[cfg(feature = "certificates")]
pub mod authority;
pub mod case;
pub mod crash;
pub mod daemon;
pub mod depth;
mod job;
pub mod machine;
pub mod model;
mod outcome;
pub mod rot;
pub mod rotation;
pub mod s3_server;
pub mod stack;
pub mod stamp;
pub mod traces;
pub mod workload;
