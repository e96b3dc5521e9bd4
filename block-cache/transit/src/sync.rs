//! Synchronization of a pool's threads. Tests replace it by a checker's, which runs the pool in
//! every order.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex};
pub(crate) use std::thread;

/// Looks for a job before a thread sleeps: 20 to 50 us of them, as a pause takes on the
/// processors of today.
pub(crate) const LOOKS: usize = 1000;
