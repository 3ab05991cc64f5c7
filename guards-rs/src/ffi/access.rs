//! Reads Python objects without running Python code: their kinds and their contents.
//!
//! No function here lets another thread, the garbage collector or the user's code run.  So a borrowed object stays
//! alive from one read to the next (rule *quiet*).  Operations that may run Python code are in `python.rs`.

use super::dict_keys::{self, NoCollector};
use super::object::{clear_error, Obj, Raised, Res};
use pyo3::ffi::*;
use std::ptr::null_mut;

/// Only Python code can answer.  The caller has to own the object before it asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MayRunPython;

/// The result of a read that runs no Python code.
pub type Quiet<T> = Result<T, MayRunPython>;

// Private CPython functions that are exported by every supported version and not declared by pyo3-ffi.
extern "C" {
    fn _PyObject_GetDictPtr(obj: *mut PyObject) -> *mut *mut PyObject;
    fn PyFunction_GetKwDefaults(f: *mut PyObject) -> *mut PyObject;
    fn PyFunction_GetDefaults(f: *mut PyObject) -> *mut PyObject;
    fn PyFunction_GetGlobals(f: *mut PyObject) -> *mut PyObject;
    fn PyMethod_Function(m: *mut PyObject) -> *mut PyObject;
    fn PyMethod_Self(m: *mut PyObject) -> *mut PyObject;
    fn PyCell_Get(cell: *mut PyObject) -> *mut PyObject;
    fn PyWeakref_GetObject(r: *mut PyObject) -> *mut PyObject;
    static mut PyMethod_Type: PyTypeObject;
    static mut PyCell_Type: PyTypeObject;
    static mut PyFunction_Type: PyTypeObject;
    static mut PyODict_Type: PyTypeObject;
}

impl<'a> Obj<'a> {
    // ---- kinds ----

    #[inline]
    pub fn is_dict(self) -> bool {
        self.class_flag(Py_TPFLAGS_DICT_SUBCLASS)
    }
    #[inline]
    pub fn is_dict_exact(self) -> bool {
        self.has_class(&raw mut PyDict_Type)
    }
    #[inline]
    pub fn is_ordered_dict_exact(self) -> bool {
        self.has_class(&raw mut PyODict_Type)
    }
    #[inline]
    pub fn is_tuple(self) -> bool {
        self.class_flag(Py_TPFLAGS_TUPLE_SUBCLASS)
    }
    #[inline]
    pub fn is_list(self) -> bool {
        self.class_flag(Py_TPFLAGS_LIST_SUBCLASS)
    }
    #[inline]
    pub fn is_tuple_exact(self) -> bool {
        self.has_class(&raw mut PyTuple_Type)
    }
    #[inline]
    pub fn is_list_exact(self) -> bool {
        self.has_class(&raw mut PyList_Type)
    }
    /// Whether this is the class `dict`.
    pub fn is_dict_type(self) -> bool {
        self.ptr() == (&raw mut PyDict_Type).cast()
    }
    /// Whether this is a class whose storage has a length: `tuple`, `list`, `dict`, `OrderedDict`.
    pub fn is_builtin_container(self) -> bool {
        let list = [&raw mut PyTuple_Type, &raw mut PyList_Type, &raw mut PyDict_Type, &raw mut PyODict_Type];
        list.into_iter().any(|ty| self.ptr() == ty.cast())
    }
    /// Whether this is a class whose items are read by position without Python code.
    pub fn is_sequence_type(self) -> bool {
        self.ptr() == (&raw mut PyTuple_Type).cast() || self.ptr() == (&raw mut PyList_Type).cast()
    }
    #[inline]
    pub fn is_type(self) -> bool {
        self.class_flag(Py_TPFLAGS_TYPE_SUBCLASS)
    }
    #[inline]
    pub fn is_set_exact(self) -> bool {
        self.has_class(&raw mut PySet_Type) || self.has_class(&raw mut PyFrozenSet_Type)
    }
    #[inline]
    pub fn is_str_exact(self) -> bool {
        self.has_class(&raw mut PyUnicode_Type)
    }
    #[inline]
    pub fn is_int_exact(self) -> bool {
        self.has_class(&raw mut PyLong_Type)
    }
    #[inline]
    pub fn is_bool(self) -> bool {
        self.has_class(&raw mut PyBool_Type)
    }
    #[inline]
    pub fn is_float_exact(self) -> bool {
        self.has_class(&raw mut PyFloat_Type)
    }
    #[inline]
    pub fn is_complex_exact(self) -> bool {
        self.has_class(&raw mut PyComplex_Type)
    }
    #[inline]
    pub fn is_bytes_exact(self) -> bool {
        self.has_class(&raw mut PyBytes_Type)
    }
    #[inline]
    pub fn is_function(self) -> bool {
        self.has_class(&raw mut PyFunction_Type)
    }
    #[inline]
    pub fn is_method(self) -> bool {
        self.has_class(&raw mut PyMethod_Type)
    }
    #[inline]
    pub fn is_cell(self) -> bool {
        self.has_class(&raw mut PyCell_Type)
    }
    pub fn is_code(self) -> bool {
        self.has_class(&raw mut PyCode_Type)
    }
    pub fn is_tuple_of_constants(self) -> bool {
        self.is_tuple_exact() && self.tuple_items().all(Obj::is_plain_constant)
    }
    pub fn is_weakref(self) -> bool {
        // SAFETY: *live*.
        unsafe { PyWeakref_CheckRef(self.ptr()) != 0 }
    }
    /// Whether this is exactly a `weakref.ref`, not a subclass.
    #[inline]
    pub fn is_weakref_exact(self) -> bool {
        self.has_class(&raw mut _PyWeakref_RefType)
    }
    pub fn is_callable(self) -> bool {
        // SAFETY: *live*.
        unsafe { PyCallable_Check(self.ptr()) != 0 }
    }

    /// Whether hashing and comparing this key runs no Python code of the user.
    pub fn is_plain_key(self) -> bool {
        self.is_str_exact() || self.is_int_exact() || self.is_bool() || self.is_bytes_exact() || self.is_none()
    }

    /// Whether this value has no parts, and reading or comparing it runs no Python code.
    pub fn is_plain_constant(self) -> bool {
        self.is_plain_key() || self.is_float_exact() || self.is_complex_exact()
    }

    // ---- containers ----

    /// The value of `key` in dict storage, unless a comparison with the keys there could run Python code.  If the table
    /// does not state that all keys are strings, at most `scan` keys are checked one by one.
    #[inline]
    pub fn dict_find(self, key: Obj, scan: usize) -> Quiet<Option<Obj<'a>>> {
        debug_assert!(self.is_dict());
        if !key.is_plain_key() || !(dict_keys::are_strings(self) || self.has_plain_keys(scan)) {
            return Err(MayRunPython);
        }
        // SAFETY: *gil*, *live*; callers check is_dict.  Plain keys are hashed and compared without an exception.
        Ok(unsafe { Obj::borrow_opt(PyDict_GetItemWithError(self.ptr(), key.ptr())) })
    }

    #[inline(never)]
    fn has_plain_keys(self, scan: usize) -> bool {
        let mut pos = 0;
        self.dict_len() <= scan && std::iter::from_fn(|| self.dict_next(&mut pos)).all(|(key, _)| key.is_plain_key())
    }

    #[inline]
    pub fn dict_len(self) -> usize {
        // SAFETY: callers check is_dict.
        unsafe { PyDict_Size(self.ptr()) as usize }
    }

    /// The next (key, value) of dict storage; `pos` starts at 0.
    pub fn dict_next(self, pos: &mut isize) -> Option<(Obj<'a>, Obj<'a>)> {
        let (mut k, mut v) = (null_mut(), null_mut());
        // SAFETY: callers check is_dict; both results are borrowed from the dict.
        unsafe {
            if PyDict_Next(self.ptr(), pos, &mut k, &mut v) == 0 {
                return None;
            }
            Some((Obj::borrow(k), Obj::borrow(v)))
        }
    }

    #[inline]
    pub fn tuple_len(self) -> usize {
        // SAFETY: callers check is_tuple.
        unsafe { PyTuple_GET_SIZE(self.ptr()) as usize }
    }

    /// Item `i < tuple_len()` of tuple storage.
    #[inline]
    pub fn tuple_item(self, i: usize) -> Obj<'a> {
        debug_assert!(self.is_tuple() && i < self.tuple_len());
        // SAFETY: callers check is_tuple and the bound; a tuple's slots are non-null.
        unsafe { Obj::borrow(PyTuple_GET_ITEM(self.ptr(), i as Py_ssize_t)) }
    }

    pub fn tuple_items(self) -> impl Iterator<Item = Obj<'a>> {
        (0..self.tuple_len()).map(move |i| self.tuple_item(i))
    }

    #[inline]
    pub fn list_len(self) -> usize {
        // SAFETY: callers check is_list.
        unsafe { PyList_GET_SIZE(self.ptr()) as usize }
    }

    /// An item of list storage.  None if out of range.
    #[inline]
    pub fn list_item(self, i: usize) -> Option<Obj<'a>> {
        // SAFETY: callers check is_list; the bound is checked here.
        (i < self.list_len()).then(|| unsafe { Obj::borrow(PyList_GET_ITEM(self.ptr(), i as Py_ssize_t)) })
    }

    // ---- scalars ----

    pub fn as_f64(self) -> f64 {
        // SAFETY: callers check is_float_exact.
        unsafe { PyFloat_AS_DOUBLE(self.ptr()) }
    }

    /// The value of an exact int that fits.  A bool is not an exact int.
    pub fn exact_i64(self) -> Option<i64> {
        let mut overflow = 0;
        // SAFETY: *gil*, *live*; an exact int is converted without running code or setting an exception.
        let value = self.is_int_exact().then(|| unsafe { PyLong_AsLongLongAndOverflow(self.ptr(), &mut overflow) });
        value.filter(|_| overflow == 0)
    }

    /// Truth of a plain constant.
    pub fn plain_truth(self) -> Quiet<bool> {
        if !self.is_plain_constant() {
            return Err(MayRunPython);
        }
        // SAFETY: *gil*, *live*; the truth of a plain constant runs no code and sets no exception.
        Ok(unsafe { PyObject_IsTrue(self.ptr()) == 1 })
    }

    /// Whether two values of one plain class (`is_plain_key`) are equal.
    pub fn plain_equals(self, other: Obj) -> bool {
        debug_assert!(self.is_plain_key() && other.is_plain_key());
        // SAFETY: *gil*, *live*; plain values of one class are compared without running code or setting an exception.
        unsafe { PyObject_RichCompareBool(self.ptr(), other.ptr(), Py_EQ) == 1 }
    }

    pub fn as_complex(self) -> (f64, f64) {
        // SAFETY: callers check is_complex_exact.
        unsafe { (PyComplex_RealAsDouble(self.ptr()), PyComplex_ImagAsDouble(self.ptr())) }
    }

    pub fn as_str(self) -> Res<&'a str> {
        let mut n = 0;
        // SAFETY: *gil*, *live*; the UTF-8 form lives as long as the str.
        unsafe {
            let p = PyUnicode_AsUTF8AndSize(self.ptr(), &mut n);
            if p.is_null() {
                return Err(Raised);
            }
            Ok(std::str::from_utf8_unchecked(std::slice::from_raw_parts(p.cast(), n as usize)))
        }
    }

    /// `as_str` for messages.  Returns `otherwise` for an object that is no str, and for a str that is no UTF-8.
    pub fn text_or(self, otherwise: &'a str) -> &'a str {
        self.as_str().unwrap_or_else(|Raised| {
            clear_error();
            otherwise
        })
    }

    // ---- attributes ----

    /// The instance dict, created if needed.  None for objects without one, and for types (their dict is reached
    /// through a proxy).
    #[inline]
    pub fn instance_dict(self) -> Option<Obj<'a>> {
        if self.is_type() {
            return None;
        }
        // SAFETY: *gil*, *live*; the slot holds null or a dict that the object keeps.
        unsafe {
            let _quiet = dict_keys::is_to_be_made(self).then(NoCollector::new);
            let slot = _PyObject_GetDictPtr(self.ptr());
            if slot.is_null() {
                return None;
            }
            if (*slot).is_null() {
                // The object has a slot but no dict yet: the getter creates and stores one.
                let made = PyObject_GenericGetDict(self.ptr(), null_mut());
                if made.is_null() {
                    PyErr_Clear();
                    return None;
                }
                Py_DECREF(made);
                return Some(Obj::borrow(made));
            }
            Obj::borrow_opt(*slot)
        }
    }

    // ---- functions, methods, cells, weak references ----

    /// The `__code__` of a Python function (callers check is_function).  The next methods do the same for other
    /// attributes.
    #[inline]
    pub fn func_code(self) -> Obj<'a> {
        // SAFETY: callers check is_function; a function always has a code object.
        unsafe { Obj::borrow(PyFunction_GetCode(self.ptr())) }
    }
    #[inline]
    pub fn func_globals(self) -> Obj<'a> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow(PyFunction_GetGlobals(self.ptr())) }
    }
    #[inline]
    pub fn func_defaults(self) -> Option<Obj<'a>> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow_opt(PyFunction_GetDefaults(self.ptr())) }.filter(|o| o.is_tuple())
    }
    #[inline]
    pub fn func_kwdefaults(self) -> Option<Obj<'a>> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow_opt(PyFunction_GetKwDefaults(self.ptr())) }.filter(|o| o.is_dict())
    }
    #[inline]
    pub fn func_closure(self) -> Option<Obj<'a>> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow_opt(PyFunction_GetClosure(self.ptr())) }.filter(|o| o.is_tuple())
    }
    pub fn method_func(self) -> Obj<'a> {
        // SAFETY: callers check is_method.
        unsafe { Obj::borrow(PyMethod_Function(self.ptr())) }
    }
    pub fn method_self(self) -> Obj<'a> {
        // SAFETY: callers check is_method.
        unsafe { Obj::borrow(PyMethod_Self(self.ptr())) }
    }

    /// The contents of a cell (callers check is_cell).
    #[inline]
    pub fn cell_get(self) -> Option<Obj<'a>> {
        // SAFETY: callers check is_cell; the cell keeps a second reference to the returned object.
        unsafe {
            let p = PyCell_Get(self.ptr());
            if !p.is_null() {
                Py_DECREF(p);
            }
            Obj::borrow_opt(p)
        }
    }

    /// The referent of a weak reference (callers check is_weakref).  None if dead.
    #[inline]
    pub fn weakref_target(self) -> Option<Obj<'a>> {
        // SAFETY: callers check is_weakref; the result is borrowed, None stands for a dead target.
        unsafe { Obj::borrow_opt(PyWeakref_GetObject(self.ptr())) }.filter(|o| !o.is_none())
    }
}
