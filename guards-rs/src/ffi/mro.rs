//! Attributes of classes, looked up without running Python code.
//!
//! The dict of a class may have keys that are no strings (`type(name, bases, {key: value})`).  A lookup would run the
//! `__eq__` of such a key.  Their absence is checked once for each version of a class; a change of the class or a base
//! changes the version.

use super::access::{MayRunPython, Quiet};
use super::dict_keys;
use super::object::{Obj, Owned, Stored};
use pyo3::ffi::*;
use std::cell::Cell;

extern "C" {
    fn _PyType_Lookup(ty: *mut PyTypeObject, name: *mut PyObject) -> *mut PyObject;
}

/// Looks up one name, which the tree owns, in classes.  Remembers the last class, with its version, in which the lookup is quiet.
pub struct ClassAttribute {
    name: Stored,
    quiet_in: Cell<(usize, u32)>,
}

/// The version of a class; 0 if it has none.  Callers check that `class` is a class.
#[inline]
pub fn version(class: Obj) -> u32 {
    // SAFETY: *live*; callers checked that it is a type.
    unsafe { (*class.ptr().cast::<PyTypeObject>()).tp_version_tag }
}

impl ClassAttribute {
    /// The owner of this value keeps `name` alive.
    pub fn new(name: Obj) -> Self {
        ClassAttribute { name: name.store(), quiet_in: Cell::new((0, 0)) }
    }

    /// The attribute in the mro of `class`.  None if absent, or if `class` is no class.
    #[inline]
    pub fn find<'a>(&self, class: Obj<'a>) -> Quiet<Option<Obj<'a>>> {
        if !class.is_type() {
            return Ok(None);
        }
        let known = (class.id(), version(class));
        if known.1 != 0 && self.quiet_in.get() == known {
            return Ok(lookup(class, self.name.get()));
        }
        self.find_anew(class)
    }

    #[inline(never)]
    fn find_anew<'a>(&self, class: Obj<'a>) -> Quiet<Option<Obj<'a>>> {
        if !self.name.get().is_str_exact() || !mro(class).tuple_items().all(has_only_strings) {
            return Err(MayRunPython);
        }
        let found = lookup(class, self.name.get());
        self.quiet_in.set((class.id(), version(class)));
        Ok(found)
    }

    /// The same lookup for keys that may run Python code.
    pub fn ask(&self, class: &Owned) -> Option<Owned> {
        if !class.get().is_type() {
            return None;
        }
        // While keys are compared, the mro may be replaced and its classes dropped.
        let _held = mro(class.get()).own();
        lookup(class.get(), self.name.get()).map(Obj::own)
    }
}

/// Looks up through CPython's type cache.  Borrowed from a class of the mro.  Callers check that `class` is a class.
#[inline]
fn lookup<'a>(class: Obj<'a>, name: Obj) -> Option<Obj<'a>> {
    // SAFETY: *gil*, *live*; a type and a string.
    unsafe { Obj::borrow_opt(_PyType_Lookup(class.ptr().cast(), name.ptr())) }
}

fn mro(class: Obj) -> Obj {
    // SAFETY: *live*; a ready class has a tuple of classes as its mro.
    unsafe { Obj::borrow((*class.ptr().cast::<PyTypeObject>()).tp_mro) }
}

/// From 3.12 on, static classes of the interpreter store their dict elsewhere.
#[cfg(Py_3_12)]
fn has_only_strings(class: Obj) -> bool {
    extern "C" {
        fn PyType_GetDict(ty: *mut PyTypeObject) -> *mut PyObject;
    }
    // SAFETY: *live*; a new reference to a dict that the class keeps, or null.
    unsafe { Owned::steal(PyType_GetDict(class.ptr().cast())) }.is_ok_and(|dict| dict_keys::are_strings(dict.get()))
}

#[cfg(not(Py_3_12))]
fn has_only_strings(class: Obj) -> bool {
    // SAFETY: *live*; the dict of a class, or null.
    unsafe { Obj::borrow_opt((*class.ptr().cast::<PyTypeObject>()).tp_dict) }.is_some_and(dict_keys::are_strings)
}
