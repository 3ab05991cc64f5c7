//! State protected by the GIL, and the lock for the compilations of one function.

use super::object::{check_signals, Res};
use pyo3::ffi::{PyEval_RestoreThread, PyEval_SaveThread};
use pyo3::Python;
use std::cell::RefCell;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A RefCell in a static or a PyO3 class.  Only the holder of the GIL borrows it, and no borrow spans Python code.
///
/// Each borrow takes a token that proves the GIL: PyO3's `Python`, which is not `Send` and has no size.  A PyO3 method
/// receives one, an `Obj` has one (`Obj::py`), and inside `ffi` a function that C calls takes one by `held`.
#[derive(Default)]
pub struct GilCell<T>(RefCell<T>);

// SAFETY: each method takes a token of the GIL and returns no reference, hence one thread at a time has a reference to the
// contents.  No contents depend on a thread (a `MutexGuard` would): threads may share and drop an `Rc` or an `Owned` in
// turn, under the GIL.
unsafe impl<T> Sync for GilCell<T> {}
// SAFETY: as for Sync.  The contents are dropped by `replace`, by a slot of a PyO3 class, which holds the GIL, or never (in
// a static).
unsafe impl<T> Send for GilCell<T> {}

/// The token of the GIL.  In builds with debug assertions (`.ci/tools checked`): panics if this thread does not hold it.
///
/// # Safety
/// *gil*, as long as the result is used.
#[inline]
pub(super) unsafe fn held<'py>() -> Python<'py> {
    // SAFETY: has no preconditions.
    debug_assert!(cfg!(test) || unsafe { pyo3::ffi::PyGILState_Check() } != 0, "this thread does not hold the GIL");
    Python::assume_attached()
}

impl<T> GilCell<T> {
    pub const fn new(value: T) -> Self {
        GilCell(RefCell::new(value))
    }

    #[inline]
    pub fn with<R>(&self, _: Python<'_>, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.0.borrow_mut())
    }

    #[inline]
    pub fn read<R>(&self, _: Python<'_>, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0.borrow())
    }

    /// As `read`, but None while the cell is borrowed for writing.  Garbage collection may start at any time.
    pub fn try_read<R>(&self, _: Python<'_>, f: impl FnOnce(&T) -> R) -> Option<R> {
        self.0.try_borrow().ok().map(|v| f(&v))
    }

    pub fn replace(&self, _: Python<'_>, value: T) -> T {
        self.0.replace(value)
    }
}

extern "C" {
    fn PyThread_get_thread_ident() -> std::ffi::c_ulong;
}

pub fn thread_id() -> u64 {
    // SAFETY: has no preconditions.
    unsafe { PyThread_get_thread_ident() as u64 }
}

/// Runs `f` without the GIL.  `f` can touch no Python object: `Obj` and `Owned` are not `Send`.
pub fn without_gil<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    struct Saved(*mut pyo3::ffi::PyThreadState);
    impl Drop for Saved {
        fn drop(&mut self) {
            // SAFETY: this thread's own state, saved below.
            unsafe { PyEval_RestoreThread(self.0) };
        }
    }
    // SAFETY: *gil* on entry; restored when `_saved` is dropped, also after a panic.
    let _saved = Saved(unsafe { PyEval_SaveThread() });
    f()
}

/// The thread and process that compile a function now.  A forked process inherits the owner of its parent, but not its
/// threads.
#[derive(Default)]
pub struct CompileLock {
    owner: Mutex<Option<(u64, u32)>>,
    free: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquisition {
    /// The lock was free.
    Now,
    /// Another thread compiled first; its entry may fit.
    Waited,
    /// This thread already compiles the function, or it compiles another one and must not wait.
    Refused,
}

impl CompileLock {
    fn owner(&self) -> MutexGuard<'_, Option<(u64, u32)>> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `may_wait` is false for a thread that holds another such lock.  It must not wait, or two threads could wait for
    /// each other.
    pub fn acquire(&self, may_wait: bool) -> Res<Acquisition> {
        let (me, process) = (thread_id(), std::process::id());
        let mut waited = false;
        loop {
            {
                let mut owner = self.owner();
                match *owner {
                    // A forked process has new threads with the same ids as its parent's.
                    Some(other) if other == (me, process) => return Ok(Acquisition::Refused),
                    Some((_, theirs)) if theirs == process => {
                        if !may_wait {
                            return Ok(Acquisition::Refused);
                        }
                    }
                    _ => {
                        *owner = Some((me, process));
                        return Ok(if waited { Acquisition::Waited } else { Acquisition::Now });
                    }
                }
            }
            waited = true;
            without_gil(|| {
                let owner = self.owner();
                if owner.is_some() {
                    drop(self.free.wait_timeout(owner, Duration::from_millis(50)));
                }
            });
            check_signals()?;
        }
    }

    pub fn release(&self) {
        *self.owner() = None;
        self.free.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore)] // needs the thread id of CPython
    fn a_thread_that_compiles_is_refused_its_own_lock() {
        let lock = CompileLock::default();
        assert_eq!(lock.acquire(true), Ok(Acquisition::Now));
        assert_eq!(lock.acquire(true), Ok(Acquisition::Refused));
        lock.release();
        assert_eq!(lock.acquire(false), Ok(Acquisition::Now));
    }

    #[test]
    #[cfg_attr(miri, ignore)] // needs the thread id of CPython
    fn a_thread_that_may_not_wait_is_refused_anothers() {
        let lock = CompileLock::default();
        assert_eq!(lock.acquire(true), Ok(Acquisition::Now));
        let other = std::thread::scope(|scope| scope.spawn(|| lock.acquire(false)).join().ok());
        assert_eq!(other, Some(Ok(Acquisition::Refused)));
    }

    #[test]
    #[cfg_attr(miri, ignore)] // needs the thread id of CPython
    fn a_lock_of_a_parent_process_is_free_in_its_child() {
        let lock = CompileLock::default();
        *lock.owner() = Some((thread_id(), std::process::id() + 1));
        assert_eq!(lock.acquire(false), Ok(Acquisition::Now));
    }

    #[test]
    fn a_cell_is_not_looked_into_while_it_is_written() {
        // SAFETY: no other thread has this cell.
        let (cell, py) = (GilCell::new(1), unsafe { held() });
        cell.with(py, |value| {
            *value = 2;
            assert_eq!(cell.try_read(py, |value| *value), None);
        });
        let read = cell.try_read(py, |value| *value);
        assert_eq!((read, cell.replace(py, 5), cell.read(py, |value| *value)), (Some(2), 2, 5));
    }
}
