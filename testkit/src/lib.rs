//! Model disk, workload generator, crash-point driver and checkers.
//!
//! - [`stamp`]: contents that say which write they came from.
//! - [`model`]: what a read may return, live and after each kind of crash.
//! - [`workload`]: seeded clients that drive volumes and report to the model.
//! - [`stack`]: what a test has to say about the stack that it tests.
//! - [`machine`]: simulated devices, a stack on them and the model, through lives and crashes.
//! - [`crash`]: the drivers: every crash point of one workload, every failure of one operation, and
//!   random lives by seed.
//! - [`depth`]: how many crashes a sweep tries.
//! - [`rot`]: random lives on devices whose contents rot.
//! - [`rotation`]: which random lives, and which slice of each sweep, a run takes.
//! - [`traces`]: references to blocks, made or from real traces.
//! - [`case`]: one run of a driver as text, so that a failure is replayed with one command.
//! - [`daemon`]: the program from outside: its files, its daemon and its clients.

mod alike;
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
pub mod stack;
pub mod stamp;
pub mod traces;
pub mod workload;
