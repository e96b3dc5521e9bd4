//! Promises: values that tasks wait for.

use std::cell::RefCell;
use std::rc::Rc;

use super::WaitList;

/// A value that one task sets once, and that others wait for.
#[derive(Debug)]
pub struct Promise<T> {
    shared: Rc<Shared<T>>,
}

/// State that the clones of a promise share.
#[derive(Debug)]
struct Shared<T> {
    value: RefCell<Option<T>>,
    waiters: WaitList,
}

impl<T> Clone for Promise<T> {
    fn clone(&self) -> Self {
        Self {
            shared: Rc::clone(&self.shared),
        }
    }
}

impl<T> Default for Promise<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Promise<T> {
    /// Returns a promise that is not set.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shared: Rc::new(Shared {
                value: RefCell::new(None),
                waiters: WaitList::new(),
            }),
        }
    }

    /// Sets the value and wakes all tasks that wait. A second value is ignored.
    pub fn set(&self, value: T) {
        self.shared.value.borrow_mut().get_or_insert(value);
        self.shared.waiters.wake_all();
    }

    /// Returns whether the value is there.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.shared.value.borrow().is_some()
    }
}

impl<T: Clone> Promise<T> {
    /// Returns the value if it is there.
    #[must_use]
    pub fn now(&self) -> Option<T> {
        self.shared.value.borrow().clone()
    }

    /// Waits for the value.
    pub async fn get(&self) -> T {
        loop {
            if let Some(value) = &*self.shared.value.borrow() {
                return value.clone();
            }
            self.shared.waiters.wait().await;
        }
    }
}
