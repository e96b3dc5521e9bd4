//! A value from another thread, waited for on a reactor.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// One side gives it once, the other waits.
#[derive(Debug)]
pub struct Answer<T>(Arc<Mutex<(Option<T>, Option<Waker>)>>);

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> Clone for Answer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Answer<T> {
    /// Gives it, from any thread.
    pub fn give(&self, value: T) {
        let waker = {
            let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            shared.0 = Some(value);
            shared.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits for it.
    pub async fn get(&self) -> T {
        std::future::poll_fn(|cx| {
            let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match shared.0.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    shared.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }
}
