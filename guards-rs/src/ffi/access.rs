//! Reading Python objects: what kind they are, what they contain, their attributes, and calls.

use super::object::{clear_error, Obj, Owned, Raised, Res};
use pyo3::ffi::*;
use std::ffi::{c_int, CStr};
use std::ptr::null_mut;

// Private CPython functions that are exported by every supported version and not declared by pyo3-ffi.
extern "C" {
    fn _PyType_Lookup(ty: *mut PyTypeObject, name: *mut PyObject) -> *mut PyObject;
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

impl Obj {
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
    /// Whether this is a class with items by position that are read without Python code.
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
    pub fn is_callable(self) -> bool {
        // SAFETY: *live*.
        unsafe { PyCallable_Check(self.ptr()) != 0 }
    }

    /// Hashing and comparing such a key runs no Python code of the user's.
    pub fn is_plain_key(self) -> bool {
        self.is_str_exact() || self.is_int_exact() || self.is_bool() || self.is_bytes_exact() || self.is_none()
    }

    /// Reading or comparing values of these types runs no Python code and has no parts.
    pub fn is_plain_constant(self) -> bool {
        self.is_plain_key() || self.is_float_exact() || self.is_complex_exact()
    }

    // ---- containers ----

    #[inline]
    pub fn dict_get(self, key: Obj) -> Res<Option<Obj>> {
        debug_assert!(self.is_dict());
        // SAFETY: *gil*, *live*; callers check is_dict.
        unsafe {
            match Obj::borrow_opt(PyDict_GetItemWithError(self.ptr(), key.ptr())) {
                Some(v) => Ok(Some(v)),
                None if PyErr_Occurred().is_null() => Ok(None),
                None => Err(Raised),
            }
        }
    }

    pub fn dict_set(self, key: Obj, value: Obj) -> Res<()> {
        // SAFETY: *gil*, *live*; raises for what is no dict.
        unsafe { ok(PyDict_SetItem(self.ptr(), key.ptr(), value.ptr())) }
    }

    #[inline]
    pub fn dict_len(self) -> usize {
        // SAFETY: callers check is_dict.
        unsafe { PyDict_Size(self.ptr()) as usize }
    }

    /// The next (key, value) of dict storage; `pos` starts at 0.
    pub fn dict_next(self, pos: &mut isize) -> Option<(Obj, Obj)> {
        let (mut k, mut v) = (null_mut(), null_mut());
        // SAFETY: callers check is_dict; both results are borrowed from the dict.
        unsafe {
            if PyDict_Next(self.ptr(), pos, &mut k, &mut v) == 0 {
                return None;
            }
            Some((Obj::borrow(k), Obj::borrow(v)))
        }
    }

    /// `len()`; runs `__len__` for types that define it in Python.
    pub fn len(self) -> Res<usize> {
        // SAFETY: *gil*, *live*.
        let n = unsafe { PyObject_Size(self.ptr()) };
        usize::try_from(n).map_err(|_| Raised)
    }

    #[inline]
    pub fn tuple_len(self) -> usize {
        // SAFETY: callers check is_tuple.
        unsafe { PyTuple_GET_SIZE(self.ptr()) as usize }
    }

    /// Item `i < tuple_len()` of tuple storage.
    #[inline]
    pub fn tuple_item(self, i: usize) -> Obj {
        debug_assert!(self.is_tuple() && i < self.tuple_len());
        // SAFETY: callers check is_tuple and the bound; a tuple's slots are non-null.
        unsafe { Obj::borrow(PyTuple_GET_ITEM(self.ptr(), i as Py_ssize_t)) }
    }

    pub fn tuple_items(self) -> impl Iterator<Item = Obj> {
        (0..self.tuple_len()).map(move |i| self.tuple_item(i))
    }

    #[inline]
    pub fn list_len(self) -> usize {
        // SAFETY: callers check is_list.
        unsafe { PyList_GET_SIZE(self.ptr()) as usize }
    }

    /// Item of list storage; None when out of range.
    #[inline]
    pub fn list_item(self, i: usize) -> Option<Obj> {
        // SAFETY: callers check is_list; the bound is checked here.
        (i < self.list_len()).then(|| unsafe { Obj::borrow(PyList_GET_ITEM(self.ptr(), i as Py_ssize_t)) })
    }

    pub fn contains(self, value: Obj) -> Res<bool> {
        // SAFETY: *gil*, *live*.
        unsafe { truth(PySequence_Contains(self.ptr(), value.ptr())) }
    }

    pub fn is_true(self) -> Res<bool> {
        // SAFETY: *gil*, *live*.
        unsafe { truth(PyObject_IsTrue(self.ptr())) }
    }

    pub fn equals(self, other: Obj) -> Res<bool> {
        // SAFETY: *gil*, *live*.
        unsafe { truth(PyObject_RichCompareBool(self.ptr(), other.ptr(), Py_EQ)) }
    }

    /// Any iterable as a fresh tuple.
    pub fn to_tuple(self) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PySequence_Tuple(self.ptr())) }
    }

    pub fn get_index(self, i: usize) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PySequence_GetItem(self.ptr(), i as Py_ssize_t)) }
    }

    // ---- scalars ----

    pub fn as_f64(self) -> f64 {
        // SAFETY: callers check is_float_exact.
        unsafe { PyFloat_AS_DOUBLE(self.ptr()) }
    }

    pub fn as_complex(self) -> (f64, f64) {
        // SAFETY: callers check is_complex_exact.
        unsafe { (PyComplex_RealAsDouble(self.ptr()), PyComplex_ImagAsDouble(self.ptr())) }
    }

    pub fn as_i64(self) -> Res<i64> {
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
    pub fn as_u64(self) -> Res<u64> {
        // SAFETY: as in as_i64.
        unsafe {
            let v = PyLong_AsUnsignedLongLongMask(self.ptr());
            if v == u64::MAX && !PyErr_Occurred().is_null() {
                return Err(Raised);
            }
            Ok(v)
        }
    }

    pub fn as_str(&self) -> Res<&str> {
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

    // ---- attributes ----

    pub fn getattr(self, name: Obj) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PyObject_GetAttr(self.ptr(), name.ptr())) }
    }

    pub fn attr(self, name: &CStr) -> Res<Owned> {
        // SAFETY: *gil*, *live*; a NUL-terminated name.
        unsafe { Owned::steal(PyObject_GetAttrString(self.ptr(), name.as_ptr())) }
    }

    /// `object.__getattribute__(self, name)`.
    pub fn generic_getattr(self, name: Obj) -> Res<Owned> {
        // SAFETY: *gil*, *live*.
        unsafe { Owned::steal(PyObject_GenericGetAttr(self.ptr(), name.ptr())) }
    }

    /// The storage of the instance dict, materialised; None for objects that have none, and for types (theirs is
    /// reached through a proxy).
    #[inline]
    pub fn instance_dict(self) -> Option<Obj> {
        if self.is_type() {
            return None;
        }
        // SAFETY: *gil*, *live*; the slot holds null or a dict that the object keeps.
        unsafe {
            let slot = _PyObject_GetDictPtr(self.ptr());
            if slot.is_null() {
                return None;
            }
            if (*slot).is_null() {
                // An object that has a slot but no dict yet: the getter makes and stores one.
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

    /// The raw attribute that the mro of a class gives for `name` (no descriptor call), through CPython's type cache.
    #[inline]
    pub fn mro_lookup(self, name: Obj) -> Option<Obj> {
        if !self.is_type() {
            return None;
        }
        // SAFETY: *gil*, *live*; a type was checked; the result is borrowed from a class of the mro.
        unsafe { Obj::borrow_opt(_PyType_Lookup(self.ptr().cast(), name.ptr())) }
    }

    // ---- functions, methods, cells, weak references ----

    /// `__code__` of a Python function (callers check is_function), and so on.
    #[inline]
    pub fn func_code(self) -> Obj {
        // SAFETY: callers check is_function; a function always has a code object.
        unsafe { Obj::borrow(PyFunction_GetCode(self.ptr())) }
    }
    #[inline]
    pub fn func_globals(self) -> Obj {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow(PyFunction_GetGlobals(self.ptr())) }
    }
    #[inline]
    pub fn func_defaults(self) -> Option<Obj> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow_opt(PyFunction_GetDefaults(self.ptr())) }.filter(|o| o.is_tuple())
    }
    #[inline]
    pub fn func_kwdefaults(self) -> Option<Obj> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow_opt(PyFunction_GetKwDefaults(self.ptr())) }.filter(|o| o.is_dict())
    }
    #[inline]
    pub fn func_closure(self) -> Option<Obj> {
        // SAFETY: as in func_code.
        unsafe { Obj::borrow_opt(PyFunction_GetClosure(self.ptr())) }.filter(|o| o.is_tuple())
    }
    pub fn method_func(self) -> Obj {
        // SAFETY: callers check is_method.
        unsafe { Obj::borrow(PyMethod_Function(self.ptr())) }
    }
    pub fn method_self(self) -> Obj {
        // SAFETY: callers check is_method.
        unsafe { Obj::borrow(PyMethod_Self(self.ptr())) }
    }

    /// Contents of a cell (callers check is_cell).
    #[inline]
    pub fn cell_get(self) -> Option<Obj> {
        // SAFETY: callers check is_cell; the cell keeps what it returned a second reference to.
        unsafe {
            let p = PyCell_Get(self.ptr());
            if !p.is_null() {
                Py_DECREF(p);
            }
            Obj::borrow_opt(p)
        }
    }

    /// Target of a weak reference (callers check is_weakref), None when dead.
    #[inline]
    pub fn weakref_target(self) -> Option<Obj> {
        // SAFETY: callers check is_weakref; the result is borrowed, None stands for a dead target.
        unsafe { Obj::borrow_opt(PyWeakref_GetObject(self.ptr())) }.filter(|o| !o.is_none())
    }

    // ---- calls ----

    /// Calls with positional arguments, then one per name in `kwnames`.
    #[inline]
    pub fn call(self, args: &[Obj], kwnames: Option<Obj>) -> Res<Owned> {
        let names = kwnames.map_or(null_mut(), Obj::ptr);
        let npos = args.len() - kwnames.map_or(0, |k| k.tuple_len());
        // SAFETY: *gil*, *live*; `Obj` has the layout of a pointer; kwnames is a tuple of str for the last arguments.
        unsafe { Owned::steal(PyObject_Vectorcall(self.ptr(), args.as_ptr().cast::<*mut PyObject>(), npos, names)) }
    }

    pub fn call_dict(self, args: Obj, kwargs: Option<Obj>) -> Res<Owned> {
        // SAFETY: *gil*, *live*; args is a tuple, kwargs a dict.
        unsafe { Owned::steal(PyObject_Call(self.ptr(), args.ptr(), kwargs.map_or(null_mut(), Obj::ptr))) }
    }

    pub fn repr(self) -> String {
        // SAFETY: *gil*, *live*.
        match unsafe { Owned::steal(PyObject_Repr(self.ptr())) } {
            Ok(text) => text.as_str().unwrap_or("<unprintable>").to_owned(),
            Err(_) => {
                clear_error();
                "<unprintable>".to_owned()
            }
        }
    }
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
