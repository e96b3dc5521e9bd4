//! What the threads of a pool meet by. Tests put a checker's own in its place, which runs the pool in every
//! order.

pub(crate) use std::sync::{Arc, Condvar, Mutex};
pub(crate) use std::thread;
