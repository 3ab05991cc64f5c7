//! The heap type of `CompiledFunction`: vectorcall, descriptor, garbage collection, weak references, `__dict__`.
//!
//! The object is a header around `crate::compiled::Compiled`, which holds all behaviour.  It is no PyO3 class because
//! those are called through a tuple.

use super::object::{runtime_error, Obj, Owned, Raised, Res};
use crate::compiled::{self, Compiled};
use crate::methods;
use pyo3::ffi::*;
use std::ffi::{c_int, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

#[repr(C)]
struct Object {
    base: PyObject,
    vectorcall: Option<vectorcallfunc>,
    dict: *mut PyObject,
    weaklist: *mut PyObject,
    /// Null only between tp_alloc and the end of tp_new.
    state: *mut Compiled,
}

static TYPE: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

/// Turns a result into what C expects; a panic becomes a RuntimeError.
fn finish(f: impl FnOnce() -> Res<Owned>) -> *mut PyObject {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => value.into_ptr(),
        Ok(Err(Raised)) => null_mut(),
        Err(_) => {
            runtime_error("internal error of the native engine (a panic; its message went to stderr)");
            null_mut()
        }
    }
}

unsafe fn arguments<'a>(args: *const *mut PyObject, n: usize) -> &'a [Obj] {
    if n == 0 {
        return &[];
    }
    std::slice::from_raw_parts(args.cast::<Obj>(), n)
}

unsafe fn keywords(names: *mut PyObject) -> (Option<Obj>, usize) {
    let names = Obj::borrow_opt(names).filter(|k| k.tuple_len() > 0);
    (names, names.map_or(0, |k| k.tuple_len()))
}

unsafe extern "C" fn vectorcall(
    this: *mut PyObject,
    args: *const *mut PyObject,
    nargsf: usize,
    names: *mut PyObject,
) -> *mut PyObject {
    let (names, n_names) = keywords(names);
    let args = arguments(args, PyVectorcall_NARGS(nargsf) as usize + n_names);
    finish(|| compiled::call(Obj::borrow(this), args, names))
}

/// The state of a CompiledFunction, or None for another object.
#[inline]
pub fn state(o: &Obj) -> Option<&Compiled> {
    // SAFETY: the type was made at import; a subtype has the same layout at its start; the object lives (*live*).
    unsafe {
        let ty = TYPE.load(Ordering::Relaxed).cast();
        if Py_TYPE(o.ptr()) != ty && PyType_IsSubtype(Py_TYPE(o.ptr()), ty) == 0 {
            return None;
        }
        (*o.ptr().cast::<Object>()).state.as_ref()
    }
}

unsafe extern "C" fn new(ty: *mut PyTypeObject, args: *mut PyObject, kwargs: *mut PyObject) -> *mut PyObject {
    finish(|| {
        let state = Box::new(methods::new(Obj::borrow(args), Obj::borrow_opt(kwargs))?);
        let alloc = (*ty).tp_alloc.ok_or(Raised)?;
        let o = Owned::steal(alloc(ty, 0))?;
        let object = o.ptr().cast::<Object>();
        (*object).vectorcall = Some(vectorcall);
        (*object).state = Box::into_raw(state);
        Ok(o)
    })
}

/// Accepts what `new` took.
unsafe extern "C" fn init(_: *mut PyObject, _: *mut PyObject, _: *mut PyObject) -> c_int {
    0
}

unsafe extern "C" fn traverse(o: *mut PyObject, visit: visitproc, arg: *mut c_void) -> c_int {
    let object = o.cast::<Object>();
    let mut rc = visit(Py_TYPE(o).cast(), arg);
    if rc == 0 && !(*object).dict.is_null() {
        rc = visit((*object).dict, arg);
    }
    if let Some(state) = (*object).state.as_ref() {
        state.visit(&mut |held| {
            if rc == 0 {
                rc = visit(held.ptr(), arg);
            }
        });
    }
    rc
}

unsafe extern "C" fn clear(o: *mut PyObject) -> c_int {
    let object = o.cast::<Object>();
    let dict = std::mem::replace(&mut (*object).dict, null_mut());
    Py_XDECREF(dict);
    if let Some(state) = (*object).state.as_ref() {
        state.clear();
    }
    0
}

unsafe extern "C" fn dealloc(o: *mut PyObject) {
    PyObject_GC_UnTrack(o.cast());
    let object = o.cast::<Object>();
    if !(*object).weaklist.is_null() {
        PyObject_ClearWeakRefs(o);
    }
    let state = std::mem::replace(&mut (*object).state, null_mut());
    if !state.is_null() {
        drop(Box::from_raw(state));
    }
    let dict = std::mem::replace(&mut (*object).dict, null_mut());
    Py_XDECREF(dict);
    let ty = Py_TYPE(o);
    if let Some(free) = (*ty).tp_free {
        free(o.cast());
    }
    Py_DECREF(ty.cast());
}

unsafe extern "C" fn descr_get(o: *mut PyObject, instance: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    if instance.is_null() || instance == Py_None() {
        Py_INCREF(o);
        return o;
    }
    PyMethod_New(o, instance)
}

extern "C" {
    fn PyMethod_New(function: *mut PyObject, instance: *mut PyObject) -> *mut PyObject;
}

unsafe extern "C" fn repr(o: *mut PyObject) -> *mut PyObject {
    finish(|| methods::repr(Obj::borrow(o)))
}

/// Methods and properties, one row each: `fn(this, args, keyword names)`, `fn(this)` with an optional setter.
macro_rules! tables {
    (methods: $($mname:literal $mdoc:literal $mpath:path;)* properties: $($pname:literal $pdoc:literal $get:path $(, $set:path)?;)*) => {
        fn method_table() -> Vec<PyMethodDef> {
            vec![$({
                unsafe extern "C" fn method(this: *mut PyObject, args: *const *mut PyObject, n: Py_ssize_t, names: *mut PyObject) -> *mut PyObject {
                    let (names, n_names) = keywords(names);
                    let args = arguments(args, n as usize + n_names);
                    finish(|| $mpath(Obj::borrow(this), args, names))
                }
                PyMethodDef {
                    ml_name: concat!($mname, "\0").as_ptr().cast(),
                    ml_meth: PyMethodDefPointer { PyCFunctionFastWithKeywords: method },
                    ml_flags: METH_FASTCALL | METH_KEYWORDS,
                    ml_doc: concat!($mdoc, "\0").as_ptr().cast(),
                }
            },)* PyMethodDef::zeroed()]
        }

        fn properties() -> Vec<PyGetSetDef> {
            vec![$({
                unsafe extern "C" fn get(this: *mut PyObject, _: *mut c_void) -> *mut PyObject {
                    finish(|| $get(Obj::borrow(this)))
                }
                #[allow(unused_mut, unused_assignments)]
                let mut setter: Option<unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut c_void) -> c_int> = None;
                $({
                    unsafe extern "C" fn set(this: *mut PyObject, value: *mut PyObject, _: *mut c_void) -> c_int {
                        let Some(value) = Obj::borrow_opt(value) else {
                            super::object::type_error(concat!($pname, " cannot be deleted"));
                            return -1;
                        };
                        match $set(Obj::borrow(this), value) { Ok(()) => 0, Err(Raised) => -1 }
                    }
                    setter = Some(set);
                })?
                PyGetSetDef {
                    name: concat!($pname, "\0").as_ptr().cast(),
                    get: Some(get),
                    set: setter,
                    doc: concat!($pdoc, "\0").as_ptr().cast(),
                    closure: null_mut(),
                }
            },)*
            PyGetSetDef {
                name: c"__dict__".as_ptr(), get: Some(PyObject_GenericGetDict), set: Some(PyObject_GenericSetDict),
                doc: null_mut(), closure: null_mut(),
            },
            // SAFETY: all-zero is the sentinel that ends the table.
            unsafe { std::mem::zeroed() }]
        }
    };
}

tables! {
methods:
    "counters" "Counters of this callable, by name." methods::counters;
    "reset" "Drops all entries and counters; the next call compiles again." methods::reset;
    "set_mode" "set_mode('compile' | 'run' | 'eager' | 'error')." methods::set_mode;
    "install" "install(entry): stores an entry that nobody compiled here, for the function's code object." methods::install;
    "entries_of" "The entries of one code object, most recently used first." methods::entries_of;
    "explain_miss" "Why no entry fits these arguments: [(entry index, guard index, text)]; empty when one fits." methods::explain_miss;
properties:
    "entries" "All entries, most recently used first." methods::entries;
    "mode" "What a call without a fitting entry does." methods::mode;
    "fn" "The original function." methods::original;
    "name" "The name used in messages." methods::name;
    "recompile_limit" "Most entries for one code object." methods::recompile_limit, methods::set_recompile_limit;
    "accumulated_limit" "Most compilations since the last reset." methods::accumulated_limit, methods::set_accumulated_limit;
}

fn member(name: &'static CStr, offset: usize) -> PyMemberDef {
    PyMemberDef {
        name: name.as_ptr(),
        type_code: Py_T_PYSSIZET,
        offset: offset as Py_ssize_t,
        flags: Py_READONLY,
        doc: null_mut(),
    }
}

/// Makes the type; once, at import.
pub fn make_type() -> Res<Owned> {
    // The tables are borrowed by the type for ever.
    let methods = Box::leak(method_table().into_boxed_slice());
    let properties = Box::leak(properties().into_boxed_slice());
    let members = Box::leak(Box::new([
        member(c"__vectorcalloffset__", std::mem::offset_of!(Object, vectorcall)),
        member(c"__dictoffset__", std::mem::offset_of!(Object, dict)),
        member(c"__weaklistoffset__", std::mem::offset_of!(Object, weaklist)),
        // SAFETY: all-zero is the sentinel that ends the table.
        unsafe { std::mem::zeroed() },
    ]));
    let doc = c"CompiledFunction(fn, compile, *, positional=False, recompile_limit=8, accumulated_limit=256, name=None)\n--\n\nA compiled Python function: entries under guards, compiled on demand by `compile(self, locals, reasons)`.";
    let slot = |slot, pfunc| PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(Py_tp_new, new as *mut c_void),
        slot(Py_tp_init, init as *mut c_void),
        slot(Py_tp_dealloc, dealloc as *mut c_void),
        slot(Py_tp_traverse, traverse as *mut c_void),
        slot(Py_tp_clear, clear as *mut c_void),
        slot(Py_tp_call, PyVectorcall_Call as *mut c_void),
        slot(Py_tp_descr_get, descr_get as *mut c_void),
        slot(Py_tp_repr, repr as *mut c_void),
        slot(Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(Py_tp_getset, properties.as_mut_ptr().cast()),
        slot(Py_tp_members, members.as_mut_ptr().cast()),
        slot(Py_tp_doc, doc.as_ptr() as *mut c_void),
        slot(0, null_mut()),
    ];
    let flags = Py_TPFLAGS_DEFAULT
        | Py_TPFLAGS_HAVE_GC
        | Py_TPFLAGS_BASETYPE
        | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR;
    let mut spec = PyType_Spec {
        name: c"pycompiler._native.CompiledFunction".as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: flags as u32,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: *gil*; the slots have the signatures that their ids ask for; the tables live for ever.
    let ty = unsafe { Owned::steal(PyType_FromSpec(&mut spec)) }?;
    TYPE.store(ty.clone().into_ptr(), Ordering::Relaxed);
    Ok(ty)
}

/// A builtin function that takes positional arguments.
macro_rules! builtin {
    ($name:literal, $doc:literal, $path:path) => {{
        unsafe extern "C" fn function(_: *mut PyObject, args: *mut *mut PyObject, n: Py_ssize_t) -> *mut PyObject {
            let args = arguments(args, n as usize);
            finish(|| $path(args))
        }
        let def = Box::leak(Box::new(PyMethodDef {
            ml_name: concat!($name, "\0").as_ptr().cast(),
            ml_meth: PyMethodDefPointer { PyCFunctionFast: function },
            ml_flags: METH_FASTCALL,
            ml_doc: concat!($doc, "\0").as_ptr().cast(),
        }));
        // SAFETY: *gil*; the definition lives for ever.
        unsafe { Owned::steal(PyCFunction_NewEx(def, null_mut(), null_mut())) }
    }};
}

pub fn tail_call_function() -> Res<Owned> {
    builtin!(
        "tail_call",
        "tail_call(f, *args)\n--\n\nReturned by generated code: the engine continues with f(*args).",
        super::tailcall::make
    )
}
