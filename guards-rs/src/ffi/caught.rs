//! Entry points from C: a panic becomes a Python exception here, because unwinding into C would end the process.
//!
//! In: the body of a slot, a watcher or a hook.  Out: the body's value, or the value that reports an exception to C.
//! Rust's own hook prints the message of the panic to stderr.

use super::object::{no_memory, runtime_error, Owned, Raised, Res};
use super::shortage::noticed;
use pyo3::ffi::*;
use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;

const TEXT: &str = "internal error of the native engine (a panic; its message went to stderr)";

/// The body's value.  If the body panics: `otherwise`, with a RuntimeError set.
#[inline]
pub fn or_raise<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        raise(&*panic);
        otherwise
    })
}

/// PyO3's panic message when a constructor cannot create an object.  PyO3 has already printed the error then.
const NO_OBJECT: &str = "Python API call failed";

#[cold]
fn raise(panic: &(dyn Any + Send)) {
    match panic.downcast_ref::<&str>() {
        Some(text) if *text == NO_OBJECT => no_memory(),
        _ => runtime_error(TEXT),
    };
}

/// The same for a body that returns an object, which also raises a MemoryError if memory was short.  Null reports an
/// exception.
#[inline]
pub fn object(body: impl FnOnce() -> Res<Owned>) -> *mut PyObject {
    or_raise(null_mut(), || match noticed(body) {
        Ok(value) => value.into_ptr(),
        Err(Raised) => null_mut(),
    })
}

/// The same where C expects no exception, and one may be pending.  The panic's exception goes to `sys.unraisablehook`.
#[inline]
pub fn or_report<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        report(&*panic);
        otherwise
    })
}

#[cold]
fn report(panic: &(dyn Any + Send)) {
    let (mut class, mut error, mut trace) = (null_mut(), null_mut(), null_mut());
    // SAFETY: *gil*: C called us; the pending exception is fetched, and restored after the report.
    unsafe {
        PyErr_Fetch(&mut class, &mut error, &mut trace);
        raise(panic);
        PyErr_WriteUnraisable(null_mut());
        PyErr_Restore(class, error, trace);
    }
}

/// The same where no exception can be raised: in a kernel without the GIL, whose error code is `otherwise`, and during
/// garbage collection, where the message on stderr is the only report.
#[inline]
pub fn or_else<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Silences the messages of expected panics.
#[cfg(test)]
pub fn quietly<T>(body: impl FnOnce() -> T) -> T {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(()); // the hook belongs to the process
    let _one = ONE.lock();
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let value = body();
    std::panic::set_hook(before);
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::object::clear_error;

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
            let constructor = "Python API call failed"; // PyO3's message
            quietly(|| assert!(object(|| std::panic::panic_any(constructor)).is_null()));
            // SAFETY: *gil*.
            assert!(unsafe { PyErr_ExceptionMatches(PyExc_MemoryError) } != 0);
            clear_error();
            let value = object(|| Owned::int(7));
            assert!(!value.is_null());
            // SAFETY: the reference that `object` returned.
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
