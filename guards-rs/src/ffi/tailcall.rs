//! `tail_call(f, *args)`: generated frame code returns this object to make the engine continue with another function.
//!
//! The object is the only holder of the arguments.  CPython lends a frame its arguments and keeps its own references
//! until the call ends; a frame of the program would have had the only references.  So the called code calls
//! `entered()` as soon as it needs nothing for which the call could be started again with the same arguments.  From
//! then on the frame alone holds them.
//!
//! An exception raised before that code runs (by a compile, by a signal handler) must be raised where the frame
//! continues, under the exception handlers active there.  `entered()` returns it to the code of the function, which
//! raises it by `arrive`.

use super::object::{runtime_error, type_error, Obj, Owned, Raised, Res};
use pyo3::ffi::*;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function and its arguments, in one allocation.  Lives between a `return` and the engine's next step.
#[repr(C)]
struct TailCall {
    base: PyVarObject,
    /// The arguments were dropped: `items` has no references to them any more.
    left: Cell<bool>,
    /// The entry found for the call has raised.
    ran: Cell<bool>,
    /// The exception raised before the code ran; owned.
    error: Cell<*mut PyObject>,
    items: [*mut PyObject; 0],
}

static TYPE: AtomicPtr<PyObject> = AtomicPtr::new(null_mut());

thread_local! {
    /// The call whose code runs next, or runs but has not called `entered` yet.
    static ENTERING: Cell<Option<Owned>> = const { Cell::new(None) };
}

unsafe fn items<'a>(o: *mut PyObject) -> &'a [Obj<'a>] {
    std::slice::from_raw_parts((*o.cast::<TailCall>()).items.as_ptr().cast::<Obj>(), Py_SIZE(o) as usize)
}

/// The items that are owned references.  Null while `make` fills them.
unsafe fn held<'a>(o: *mut PyObject) -> &'a [*mut PyObject] {
    let call = &*o.cast::<TailCall>();
    let n = Py_SIZE(o) as usize;
    std::slice::from_raw_parts(call.items.as_ptr(), if call.left.get() { n.min(1) } else { n })
}

unsafe extern "C" fn traverse(o: *mut PyObject, visit: visitproc, arg: *mut c_void) -> c_int {
    for item in held(o) {
        if !item.is_null() {
            let rc = visit(*item, arg);
            if rc != 0 {
                return rc;
            }
        }
    }
    let error = (*o.cast::<TailCall>()).error.get();
    if !error.is_null() {
        let rc = visit(error, arg);
        if rc != 0 {
            return rc;
        }
    }
    visit(Py_TYPE(o).cast(), arg)
}

unsafe extern "C" fn dealloc(o: *mut PyObject) {
    PyObject_GC_UnTrack(o.cast());
    let ty = Py_TYPE(o);
    for item in held(o) {
        Py_XDECREF(*item);
    }
    Py_XDECREF((*o.cast::<TailCall>()).error.get());
    PyObject_GC_Del(o.cast());
    Py_DECREF(ty.cast());
}

/// Creates the type; once, at import.  `call` is the `tp_call` of its objects.
pub fn make_type(call: ternaryfunc) -> Res<Owned> {
    let mut slots = [
        PyType_Slot { slot: Py_tp_call, pfunc: call as *mut c_void },
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

/// Creates a TailCall.  `args[0]` is the function.
pub fn make(args: &[Obj]) -> Res<Owned> {
    if !args.first().is_some_and(|f| f.is_callable()) {
        return Err(type_error("tail_call(f, *args): f must be callable"));
    }
    // SAFETY: *gil*; the type was created at import; alloc zeroes the items, which are then filled with new references.
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

/// The function and its arguments, if `o` is a TailCall.  It holds the arguments until `has_left`.
#[inline]
pub fn view(o: &Owned) -> Res<Option<(Obj<'_>, &[Obj<'_>])>> {
    if o.get().class().ptr() != TYPE.load(Ordering::Relaxed) {
        return Ok(None);
    }
    if has_left(o.get()) {
        return Err(runtime_error("a TailCall is followed once"));
    }
    // SAFETY: the class was compared; all items are filled by `make` and never changed.
    let all = unsafe { items(o.ptr()) };
    Ok(all.split_first().map(|(f, rest)| (*f, rest)))
}

/// Whether a TailCall has dropped its arguments.
#[inline]
pub fn has_left(call: Obj) -> bool {
    // SAFETY: *live*; callers got it from `view`, which compared the class.
    unsafe { (*call.ptr().cast::<TailCall>()).left.get() }
}

/// Records that the entry found for this call has raised.
pub fn has_run(call: Obj) {
    // SAFETY: *live*; callers got it from `view`, which compared the class.
    unsafe { (*call.ptr().cast::<TailCall>()).ran.set(true) }
}

/// Stores the pending exception for the function of this call.  False if the function's code has already run.
pub fn keep_error(call: Obj) -> bool {
    if has_left(call) {
        return false;
    }
    // SAFETY: as for `has_run`; *gil*; an exception is set, and the fetched exception is owned.
    unsafe {
        let state = &*call.ptr().cast::<TailCall>();
        if state.ran.get() || !state.error.get().is_null() {
            return false;
        }
        state.error.set(super::object::take_error());
    }
    true
}

/// `arrive(error)`: raises the exception that `entered()` returned, if any.
pub fn arrive(args: &[Obj]) -> Res<Owned> {
    let [error] = args else { return Err(type_error("arrive(error) takes one argument")) };
    if error.is_none() {
        return Ok(Owned::none());
    }
    // SAFETY: *gil*, *live*; for an object that is no BaseException, CPython raises a SystemError.
    unsafe { PyErr_SetObject(Py_TYPE(error.ptr()).cast(), error.ptr()) }
    Err(Raised)
}

/// While this value is alive, `entered()` applies to this call, whose function's code is about to run.  None for a
/// normal call.
pub struct CallMark(Option<Owned>);

impl CallMark {
    #[inline]
    pub fn new(call: Option<Obj>) -> CallMark {
        CallMark(ENTERING.with(|e| e.replace(call.map(Obj::own))))
    }
}

impl Drop for CallMark {
    #[inline]
    fn drop(&mut self) {
        drop(ENTERING.with(|e| e.replace(self.0.take())));
    }
}

/// `entered()`: makes the running frame the only holder of its arguments.  Returns the exception to raise, or None.
pub fn entered(args: &[Obj]) -> Res<Owned> {
    if !args.is_empty() {
        return Err(type_error("entered() takes no arguments"));
    }
    if let Some(call) = ENTERING.with(Cell::take) {
        // SAFETY: `CallMark` receives TailCalls.  The references belong to this object and are dropped once: `left` is
        // set before the first drop, which may run code.
        unsafe {
            let arguments = held(call.ptr());
            (*call.ptr().cast::<TailCall>()).left.set(true);
            arguments.iter().skip(1).for_each(|item| Py_XDECREF(*item));
            let error = (*call.ptr().cast::<TailCall>()).error.replace(null_mut());
            if !error.is_null() {
                return Owned::steal(error);
            }
        }
    }
    Ok(Owned::none())
}
