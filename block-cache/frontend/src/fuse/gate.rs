//! Limit on the requests of foreign threads in flight on the engine reactor.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Minimum weight of a request, bytes: its task and messages.
const LEAST_BYTES: usize = 4096;

/// Admits requests up to a number of bytes.
#[derive(Debug)]
pub(super) struct Gate {
    limit_bytes: usize,
    inside_bytes: Mutex<usize>,
    left: Condvar,
}

/// Permission of an admitted request, held until it ends.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    bytes: usize,
}

impl Gate {
    pub(super) fn new(limit_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            inside_bytes: Mutex::new(0),
            left: Condvar::new(),
        })
    }

    /// Waits until a request of `bytes` fits. A request larger than the limit is admitted alone.
    pub(super) fn enter(self: &Arc<Self>, bytes: usize) -> Pass {
        let bytes = bytes.clamp(LEAST_BYTES, self.limit_bytes);
        let inside = self.inside_bytes.lock();
        let mut inside = self
            .left
            .wait_while(inside.unwrap_or_else(PoisonError::into_inner), |inside| {
                *inside > self.limit_bytes - bytes
            })
            .unwrap_or_else(PoisonError::into_inner);
        *inside += bytes;
        Pass {
            gate: Arc::clone(self),
            bytes,
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        *self
            .gate
            .inside_bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner) -= self.bytes;
        self.gate.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{TryRecvError, channel};
    use std::time::Duration;

    #[test]
    fn a_full_gate_waits_until_a_request_ends() {
        let gate = Gate::new(64 << 10);
        let large = gate.enter(60 << 10);
        let small = gate.enter(1);
        let (send, receive) = channel();
        let other = Arc::clone(&gate);
        let thread = std::thread::spawn(move || {
            let _pass = other.enter(1 << 20);
            send.send(()).expect("the test waits");
        });
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(receive.try_recv(), Err(TryRecvError::Empty));
        drop((large, small));
        receive
            .recv_timeout(Duration::from_secs(10))
            .expect("let in once the gate is empty");
        thread.join().expect("the thread ends");
        assert_eq!(*gate.inside_bytes.lock().expect("not poisoned"), 0);
    }
}
