//! Storage for a Python type that is created at import.

use super::object::Owned;
use pyo3::ffi::{PyObject, PyTypeObject, PyType_IsSubtype, Py_TYPE};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The Python type whose objects hold a `T`.  Only the code that creates the type for `T` sets it, so each object of it
/// has a `T`.
pub struct Class<T>(AtomicPtr<PyTypeObject>, PhantomData<fn() -> T>);

impl<T> Class<T> {
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        Class(AtomicPtr::new(null_mut()), PhantomData)
    }

    /// Sets the type, which is never freed.
    pub(super) fn set(&self, class: Owned) {
        self.0.store(class.into_ptr().cast(), Ordering::Relaxed);
    }

    /// # Safety
    /// A live object.
    #[inline]
    pub(super) unsafe fn is_exactly_of(&self, o: *mut PyObject) -> bool {
        Py_TYPE(o) == self.0.load(Ordering::Relaxed)
    }

    /// # Safety
    /// A live object; the type exists.
    #[inline]
    pub(super) unsafe fn is_of(&self, o: *mut PyObject) -> bool {
        self.is_exactly_of(o) || PyType_IsSubtype(Py_TYPE(o), self.0.load(Ordering::Relaxed)) != 0
    }
}
