//! Attributes of classes, looked up without running Python code.
//!
//! A class's dict may have keys that are no strings (`type(name, bases, {key: value})`), whose `__eq__` a lookup would run.
//! That there is none is looked up once for each state of a class: a change of it or of a base gives it another version.

use super::access::{MayRunPython, Quiet};
use super::dict_keys;
use super::object::{Obj, Owned};
use pyo3::ffi::*;
use std::cell::Cell;

extern "C" {
    fn _PyType_Lookup(ty: *mut PyTypeObject, name: *mut PyObject) -> *mut PyObject;
}

/// Looks one name up in classes; remembers the last class, with its version, that a quiet lookup is possible in.
pub struct ClassAttribute {
    name: Obj,
    quiet_in: Cell<(usize, u32)>,
}

/// The version of a class, 0 while it has none; callers check that it is one.
#[inline]
pub fn version(class: Obj) -> u32 {
    // SAFETY: *live*; callers checked that it is a type.
    unsafe { (*class.ptr().cast::<PyTypeObject>()).tp_version_tag }
}

impl ClassAttribute {
    /// The holder of this keeps `name` alive.
    pub fn new(name: Obj) -> Self {
        ClassAttribute { name, quiet_in: Cell::new((0, 0)) }
    }

    /// What the mro of `class` has under the name; None as well for what is no class.
    #[inline]
    pub fn find(&self, class: Obj) -> Quiet<Option<Obj>> {
        if !class.is_type() {
            return Ok(None);
        }
        let known = (class.id(), version(class));
        if known.1 != 0 && self.quiet_in.get() == known {
            return Ok(lookup(class, self.name));
        }
        self.find_anew(class)
    }

    #[inline(never)]
    fn find_anew(&self, class: Obj) -> Quiet<Option<Obj>> {
        if !self.name.is_str_exact() || !mro(class).tuple_items().all(has_only_strings) {
            return Err(MayRunPython);
        }
        let found = lookup(class, self.name);
        self.quiet_in.set((class.id(), version(class)));
        Ok(found)
    }

    /// The same, whatever the keys do.
    pub fn ask(&self, class: &Owned) -> Option<Owned> {
        if !class.is_type() {
            return None;
        }
        // An mro may be replaced, and the classes in it dropped, while keys are compared.
        let _held = mro(class.get()).own();
        lookup(class.get(), self.name).map(Obj::own)
    }
}

/// Through CPython's type cache; borrowed from a class of the mro.  Callers check that `class` is one.
#[inline]
fn lookup(class: Obj, name: Obj) -> Option<Obj> {
    // SAFETY: *gil*, *live*; a type and a string.
    unsafe { Obj::borrow_opt(_PyType_Lookup(class.ptr().cast(), name.ptr())) }
}

fn mro(class: Obj) -> Obj {
    // SAFETY: *live*; a ready class has a tuple of classes as its mro.
    unsafe { Obj::borrow((*class.ptr().cast::<PyTypeObject>()).tp_mro) }
}

/// Static classes of the interpreter have their dict elsewhere from 3.12 on.
#[cfg(Py_3_12)]
fn has_only_strings(class: Obj) -> bool {
    extern "C" {
        fn PyType_GetDict(ty: *mut PyTypeObject) -> *mut PyObject;
    }
    // SAFETY: *live*; a new reference, to a dict that the class keeps, or null.
    unsafe { Owned::steal(PyType_GetDict(class.ptr().cast())) }.is_ok_and(|dict| dict_keys::are_strings(dict.get()))
}

#[cfg(not(Py_3_12))]
fn has_only_strings(class: Obj) -> bool {
    // SAFETY: *live*; the dict of a class, or null.
    unsafe { Obj::borrow_opt((*class.ptr().cast::<PyTypeObject>()).tp_dict) }.is_some_and(dict_keys::are_strings)
}
