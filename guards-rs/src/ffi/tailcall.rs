//! `tail_call(f, *args)`: the object by which generated frame code asks the engine to continue elsewhere.

use super::object::{type_error, Obj, Owned, Raised, Res};
use pyo3::ffi::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function and its arguments, in one allocation.  Lives between a `return` and the engine's next step.
#[repr(C)]
struct TailCall {
    base: PyVarObject,
    items: [*mut PyObject; 0],
}

static TYPE: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

unsafe fn items<'a>(o: *mut PyObject) -> &'a [Obj] {
    std::slice::from_raw_parts((*o.cast::<TailCall>()).items.as_ptr().cast::<Obj>(), Py_SIZE(o) as usize)
}

unsafe extern "C" fn traverse(o: *mut PyObject, visit: visitproc, arg: *mut c_void) -> c_int {
    for item in std::slice::from_raw_parts((*o.cast::<TailCall>()).items.as_ptr(), Py_SIZE(o) as usize) {
        if !item.is_null() {
            let rc = visit(*item, arg);
            if rc != 0 {
                return rc;
            }
        }
    }
    visit(Py_TYPE(o).cast(), arg)
}

unsafe extern "C" fn dealloc(o: *mut PyObject) {
    PyObject_GC_UnTrack(o.cast());
    let ty = Py_TYPE(o);
    for item in std::slice::from_raw_parts((*o.cast::<TailCall>()).items.as_ptr(), Py_SIZE(o) as usize) {
        Py_XDECREF(*item);
    }
    PyObject_GC_Del(o.cast());
    Py_DECREF(ty.cast());
}

/// Makes the type; once, at import.
pub fn make_type() -> Res<Owned> {
    let mut slots = [
        PyType_Slot { slot: Py_tp_dealloc, pfunc: dealloc as *mut c_void },
        PyType_Slot { slot: Py_tp_traverse, pfunc: traverse as *mut c_void },
        PyType_Slot { slot: 0, pfunc: null_mut() },
    ];
    let mut spec = PyType_Spec {
        name: c"pycompiler._native.TailCall".as_ptr(),
        basicsize: size_of::<TailCall>() as c_int,
        itemsize: size_of::<*mut PyObject>() as c_int,
        flags: (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION) as u32,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: *gil*; the spec is complete and copied by CPython.
    let ty = unsafe { Owned::steal(PyType_FromSpec(&mut spec)) }?;
    TYPE.store(ty.clone().into_ptr(), Ordering::Relaxed);
    Ok(ty)
}

/// `args[0]` is the function.
pub fn make(args: &[Obj]) -> Res<Owned> {
    if !args.first().is_some_and(|f| f.is_callable()) {
        return Err(type_error("tail_call(f, *args): f must be callable"));
    }
    // SAFETY: *gil*; the type was made at import; alloc zeroes the items, which are then filled with new references.
    unsafe {
        let o = PyType_GenericAlloc(TYPE.load(Ordering::Relaxed).cast(), args.len() as Py_ssize_t);
        if o.is_null() {
            return Err(Raised);
        }
        let slots = (*o.cast::<TailCall>()).items.as_mut_ptr();
        for (i, a) in args.iter().enumerate() {
            *slots.add(i) = a.own().into_ptr();
        }
        Owned::steal(o)
    }
}

/// The function and its arguments, when `o` is a TailCall; they live as long as it does.
#[inline]
pub fn view(o: &Owned) -> Option<(Obj, &[Obj])> {
    if o.class().ptr() != TYPE.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: the class was compared; all items are filled by `make` and never changed.
    let all = unsafe { items(o.ptr()) };
    all.split_first().map(|(f, rest)| (*f, rest))
}
