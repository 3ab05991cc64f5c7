//! Where C calls us: a panic ends there, in an exception.  Unwinding into C would end the process.
//!
//! In: the body of a slot, a watcher or a hook.  Out: its value, or the value that tells C of an exception.  The message of a
//! panic goes to stderr, by Rust's own hook.

use super::object::{runtime_error, Owned, Raised, Res};
use pyo3::ffi::*;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;

const TEXT: &str = "internal error of the native engine (a panic; its message went to stderr)";

/// The body's value; `otherwise`, with a RuntimeError set, where it panics.
#[inline]
pub fn or_raise<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        raise();
        otherwise
    })
}

#[cold]
fn raise() {
    runtime_error(TEXT);
}

/// The same for a body with an object as its value, of which null tells.
#[inline]
pub fn object(body: impl FnOnce() -> Res<Owned>) -> *mut PyObject {
    or_raise(null_mut(), || match body() {
        Ok(value) => value.into_ptr(),
        Err(Raised) => null_mut(),
    })
}

/// The same where C expects no exception, and one may be set already: the panic's goes to `sys.unraisablehook`.
#[inline]
pub fn or_report<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
        report();
        otherwise
    })
}

#[cold]
fn report() {
    let (mut class, mut error, mut trace) = (null_mut(), null_mut(), null_mut());
    // SAFETY: *gil*: C called us; what was pending is fetched, and restored behind the report.
    unsafe {
        PyErr_Fetch(&mut class, &mut error, &mut trace);
        raise();
        PyErr_WriteUnraisable(null_mut());
        PyErr_Restore(class, error, trace);
    }
}

/// The same in the middle of a collection, where no Python code may run: the message on stderr is all there is.
#[inline]
pub fn or_else<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::object::clear_error;

    /// Panics here are meant: they print nothing.
    fn quietly(body: impl FnOnce()) {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        body();
        std::panic::set_hook(before);
    }

    fn is_runtime_error() -> bool {
        // SAFETY: *gil*: tests attach.
        unsafe { !PyErr_Occurred().is_null() && PyErr_ExceptionMatches(PyExc_RuntimeError) != 0 }
    }

    #[test]
    #[cfg_attr(miri, ignore)] // needs an interpreter
    fn a_panic_becomes_an_exception() {
        pyo3::Python::initialize();
        pyo3::Python::attach(|_| {
            quietly(|| {
                assert!(object(|| panic!("meant")).is_null());
                assert!(is_runtime_error());
                clear_error();
                assert_eq!(or_raise(-1, || panic!("meant")), -1);
                assert!(is_runtime_error());
                clear_error();
            });
            let value = object(|| Owned::int(7));
            assert!(!value.is_null());
            // SAFETY: the reference that `object` gave.
            unsafe { Py_DECREF(value) };
        });
    }

    #[test]
    #[cfg_attr(miri, ignore)] // needs an interpreter
    fn a_panic_where_no_exception_may_be_keeps_the_one_that_is_set() {
        pyo3::Python::initialize();
        pyo3::Python::attach(|_| {
            crate::ffi::object::value_error("before");
            quietly(|| assert_eq!(or_report(3, || panic!("meant")), 3));
            // SAFETY: *gil*.
            assert!(unsafe { PyErr_ExceptionMatches(PyExc_ValueError) } != 0);
            clear_error();
            quietly(|| assert_eq!(or_else(4, || panic!("meant")), 4));
            // SAFETY: *gil*.
            assert!(unsafe { PyErr_Occurred() }.is_null());
        });
    }
}
