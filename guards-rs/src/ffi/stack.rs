//! Free space on this thread's C stack.
//!
//! CPython 3.11 limits the number of Python calls, not the bytes of the C stack.  With a raised
//! `sys.setrecursionlimit`, or while a capture has raised it, recursion through compiled callables could overflow the
//! stack.  Callers check here first.

use super::object::{raise, Obj, Raised};
use pyo3::ffi::PyExc_RecursionError;
use std::cell::Cell;

/// Space reserved for the code that is called next.  A torch operator uses some tens of kilobytes.
const RESERVE: usize = 1 << 20;

thread_local! {
    /// The address below which the stack is nearly used up; 0 while unknown.
    static LOWEST: Cell<usize> = const { Cell::new(0) };
}

#[cold]
fn lowest() -> usize {
    // SAFETY: the attributes are initialised by the first call, read and destroyed after it.
    let (bottom, size) = unsafe {
        let mut attributes = std::mem::zeroed();
        let (mut bottom, mut size) = (std::ptr::null_mut(), 0);
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) == 0 {
            libc::pthread_attr_getstack(&attributes, &mut bottom, &mut size);
            libc::pthread_attr_destroy(&mut attributes);
        }
        (bottom as usize, size)
    };
    bottom + RESERVE.min(size / 4) + 1
}

/// Whether the stack is nearly used up.
#[inline]
pub fn is_low() -> bool {
    let here = 0u8;
    let mut limit = LOWEST.with(Cell::get);
    if limit == 0 {
        limit = lowest();
        LOWEST.with(|l| l.set(limit));
    }
    (std::ptr::addr_of!(here) as usize) < limit
}

/// Err with a RecursionError when the stack is nearly used up.
#[inline]
pub fn check() -> Result<(), Raised> {
    if is_low() {
        return Err(overflow());
    }
    Ok(())
}

#[cold]
fn overflow() -> Raised {
    // SAFETY: the exception class lives as long as the interpreter.
    let class = unsafe { Obj::borrow(PyExc_RecursionError) };
    raise(
        class,
        "maximum recursion depth exceeded: this thread's C stack is nearly used up by calls of compiled callables; \
         recurse less deeply, or enlarge the stack (ulimit -s, threading.stack_size)",
    )
}
