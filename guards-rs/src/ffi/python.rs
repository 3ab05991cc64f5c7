//! Operations that may run Python code, including the user's.  They are methods of `Owned` only, because such code may
//! drop every other holder of the object.  Their results are owned too.

use super::object::{clear_error, Obj, Owned, Raised, Res};
use pyo3::ffi::*;
use std::ffi::{c_int, CStr};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Owned {
    /// The value of `key` in dict storage.  Keys may have an `__eq__` and a `__hash__` written in Python.
    pub fn dict_get(&self, key: &Owned) -> Res<Option<Owned>> {
        debug_assert!(self.get().is_dict());
        // SAFETY: *gil*, *live*; callers check is_dict; nothing runs between the lookup and the new reference.
        unsafe {
            match Obj::borrow_opt(PyDict_GetItemWithError(self.ptr(), key.ptr())) {
                Some(v) => Ok(Some(v.own())),
                None if PyErr_Occurred().is_null() => Ok(None),
                None => Err(Raised),
            }
        }
    }

    pub fn dict_set(&self, key: Obj, value: Obj) -> Res<()> {
        // SAFETY: *gil*, *live*; raises if `self` is no dict.
        unsafe { ok(PyDict_SetItem(self.ptr(), key.ptr(), value.ptr())) }
    }

    /// `len()`; runs `__len__` for types that define it in Python.
    pub fn len(&self) -> Res<usize> {
        // SAFETY: *gil*, *live*.
        let n = unsafe { PyObject_Size(self.ptr()) };
        usize::try_from(n).map_err(|_| Raised)
    }

    pub fn contains(&self, value: Obj) -> Res<bool> {
        // SAFETY: *gil*, *live*.
        unsafe { truth(PySequence_Contains(self.ptr(), value.ptr())) }
    }

    pub fn is_true(&self) -> Res<bool> {
        // SAFETY: *gil*, *live*.
        unsafe { truth(PyObject_IsTrue(self.ptr())) }
    }

    pub fn equals(&self, other: Obj) -> Res<bool> {
        // SAFETY: *gil*, *live*.
        unsafe { truth(PyObject_RichCompareBool(self.ptr(), other.ptr(), Py_EQ)) }
    }

    /// A new tuple of the items of any iterable.
    pub fn to_tuple(&self) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PySequence_Tuple(self.ptr())) }
    }

    pub fn get_index(&self, i: usize) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PySequence_GetItem(self.ptr(), i as Py_ssize_t)) }
    }

    pub fn as_i64(&self) -> Res<i64> {
        // SAFETY: *gil*, *live*; -1 with an exception set is an error.
        unsafe {
            let v = PyLong_AsLongLong(self.ptr());
            if v == -1 && !PyErr_Occurred().is_null() {
                return Err(Raised);
            }
            Ok(v)
        }
    }

    /// The low 64 bits of an int.
    pub fn as_u64(&self) -> Res<u64> {
        // SAFETY: as in as_i64.
        unsafe {
            let v = PyLong_AsUnsignedLongLongMask(self.ptr());
            if v == u64::MAX && !PyErr_Occurred().is_null() {
                return Err(Raised);
            }
            Ok(v)
        }
    }

    pub fn is_instance(&self, class: Obj) -> Res<bool> {
        // SAFETY: *gil*, *live*; raises if `class` is no class.
        unsafe { truth(PyObject_IsInstance(self.ptr(), class.ptr())) }
    }

    pub fn getattr(&self, name: Obj) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PyObject_GetAttr(self.ptr(), name.ptr())) }
    }

    pub fn attr(&self, name: &CStr) -> Res<Owned> {
        // SAFETY: *gil*, *live*; a NUL-terminated name.
        unsafe { Owned::steal(PyObject_GetAttrString(self.ptr(), name.as_ptr())) }
    }

    pub fn set_attr(&self, name: Obj, value: Obj) -> Res<()> {
        // SAFETY: *gil*, *live*.
        unsafe { ok(PyObject_SetAttr(self.ptr(), name.ptr(), value.ptr())) }
    }

    /// `weakref.ref(self)`.
    pub fn weak_reference(&self) -> Res<Owned> {
        // SAFETY: *gil*, *live*; null is no callback.
        unsafe { Owned::steal(PyWeakref_NewRef(self.ptr(), null_mut())) }
    }

    /// Empties a list; returns its items.
    pub fn take_items(&self) -> Res<Vec<Owned>> {
        debug_assert!(self.get().is_list());
        let items = (0..self.get().list_len()).filter_map(|i| self.get().list_item(i)).map(Obj::own).collect();
        // SAFETY: *gil*, *live*; callers check is_list; null deletes the items.
        unsafe { ok(PyList_SetSlice(self.ptr(), 0, self.get().list_len() as Py_ssize_t, null_mut()))? };
        Ok(items)
    }

    /// The bound method of the callable `self` and `instance`.
    pub fn bound_to(&self, instance: Obj) -> Res<Owned> {
        // SAFETY: *gil*, *live*; neither is null.
        unsafe { Owned::steal(PyMethod_New(self.ptr(), instance.ptr())) }
    }

    /// `object.__getattribute__(self, name)`.
    pub fn generic_getattr(&self, name: Obj) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PyObject_GenericGetAttr(self.ptr(), name.ptr())) }
    }

    /// Calls with positional arguments, followed by one keyword argument for each name in `kwnames`.
    #[inline]
    pub fn call(&self, args: &[Obj], kwnames: Option<Obj>) -> Res<Owned> {
        let names = kwnames.map_or(null_mut(), Obj::ptr);
        let npos = args.len() - kwnames.map_or(0, |k| k.tuple_len());
        // SAFETY: *gil*, *live*; `Obj` has the layout of a pointer; kwnames is a tuple of str for the last arguments.
        unsafe { Owned::steal(PyObject_Vectorcall(self.ptr(), args.as_ptr().cast::<*mut PyObject>(), npos, names)) }
    }

    /// Whether a call takes references to its arguments before it does anything else.  The frame of a plain function
    /// does, if the function has the usual vectorcall (which `learn_calls` has read).
    #[inline]
    pub fn holds_arguments(&self) -> bool {
        self.get().is_function() && vectorcall(self.get()) == CALLS.load(Ordering::Relaxed)
    }

    /// Reads the vectorcall of unmodified functions, from a new function with the code of `self`.
    pub fn learn_calls(&self) -> Res<()> {
        if self.get().is_function() && CALLS.load(Ordering::Relaxed) == 0 {
            // SAFETY: *gil*, *live*; a function has a code object and globals.
            let new =
                unsafe { Owned::steal(PyFunction_New(self.get().func_code().ptr(), self.get().func_globals().ptr()))? };
            CALLS.store(vectorcall(new.get()), Ordering::Relaxed);
        }
        Ok(())
    }

    pub fn call_dict(&self, args: Obj, kwargs: Option<Obj>) -> Res<Owned> {
        // SAFETY: *gil*, *live*; args is a tuple, kwargs a dict.
        unsafe { Owned::steal(PyObject_Call(self.ptr(), args.ptr(), kwargs.map_or(null_mut(), Obj::ptr))) }
    }

    pub fn repr(&self) -> String {
        // SAFETY: *gil*, *live*.
        match unsafe { Owned::steal(PyObject_Repr(self.ptr())) } {
            Ok(text) => text.get().text_or("<unprintable>").to_owned(),
            Err(_) => {
                clear_error();
                "<unprintable>".to_owned()
            }
        }
    }
}

extern "C" {
    fn PyMethod_New(function: *mut PyObject, instance: *mut PyObject) -> *mut PyObject;
}

/// The address of the usual vectorcall of functions; 0 while unknown.
static CALLS: AtomicUsize = AtomicUsize::new(0);

#[inline]
fn vectorcall(function: Obj) -> usize {
    // SAFETY: *live*; callers check is_function.
    unsafe { (*function.ptr().cast::<PyFunctionObject>()).vectorcall }.map_or(1, |f| f as usize)
}

unsafe fn ok(rc: c_int) -> Res<()> {
    if rc < 0 {
        return Err(Raised);
    }
    Ok(())
}

unsafe fn truth(rc: c_int) -> Res<bool> {
    if rc < 0 {
        return Err(Raised);
    }
    Ok(rc != 0)
}
