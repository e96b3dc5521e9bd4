//! Random lives of volumes over a simulated store, against a model disk.
//!
//! # Fault contract of the store
//!
//! - An operation takes effect at one moment between its call and its answer. Operations in flight
//!   take effect in any order.
//! - An operation may fail without an effect, or after its effect: the answer is lost.
//! - A creation or deletion that failed, or whose caller ended, may take effect at any later time.
//!   A creation that succeeded may be delivered once more at any later time.
//! - A creation has no effect if the object exists. Reads and lists show all effects before them.
//! - A line may be cut for a while: everything on it fails. It may be held: everything on it waits.

mod faults;
mod lives;
mod model;
mod session;
mod store;
mod writers;
