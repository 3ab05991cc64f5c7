//! Borrowed and owned Python references, and the operations on them that guards and calls need.

use super::sync::held;
use pyo3::ffi::*;
use pyo3::pyclass::boolean_struct::True;
use pyo3::{Py, PyClass, PyTypeInfo, Python};
use smallvec::SmallVec;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// A Python exception is set in this thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raised;

pub type Res<T> = Result<T, Raised>;

/// A borrowed, non-null reference, to an object that lives for `'a` (rules *gil* and *live* of the parent module).  It is
/// not `Send`, so code that runs without the GIL (`sync::without_gil`) cannot receive one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(transparent)]
pub struct Obj<'a>(NonNull<PyObject>, PhantomData<&'a PyObject>);

/// A borrowed reference without a lifetime, for a structure whose owner of the object the compiler cannot see: the
/// structure's comment names it (rule *stored*).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Stored(NonNull<PyObject>);

impl Stored {
    #[inline]
    pub fn get(&self) -> Obj<'_> {
        Obj(self.0, PhantomData)
    }

    #[inline]
    pub fn all(items: &[Stored]) -> &[Obj<'_>] {
        // SAFETY: both are transparent wrappers of the same pointer.
        unsafe { std::slice::from_raw_parts(items.as_ptr().cast(), items.len()) }
    }
}

/// An object that is never freed, so any structure may store it.
#[derive(Clone, Copy, Debug)]
pub struct Immortal(Obj<'static>);

// SAFETY: the object lives as long as the process; every use goes through `get`, under rule *gil*.
unsafe impl Send for Immortal {}
// SAFETY: as for Send.
unsafe impl Sync for Immortal {}

impl Immortal {
    /// Takes a reference that is never dropped.
    pub fn new(value: Owned) -> Immortal {
        Immortal(Obj::forever(value))
    }

    #[inline]
    pub fn get(self) -> Obj<'static> {
        self.0
    }
}

/// A strong reference.  Unlike `Py<PyAny>` it drops by a plain decref, for slots that PyO3 does not know.
#[derive(PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Owned(NonNull<PyObject>);

impl Drop for Owned {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: *gil*; this value owns one reference.
        unsafe { Py_DECREF(self.0.as_ptr()) }
    }
}

impl Clone for Owned {
    #[inline]
    fn clone(&self) -> Owned {
        self.get().own()
    }
}

impl Owned {
    /// Takes over a new reference; null means that an exception is set.
    ///
    /// # Safety
    /// `p` is null with an exception set, or a reference that the caller owns.
    #[inline]
    pub unsafe fn steal(p: *mut PyObject) -> Res<Owned> {
        NonNull::new(p).map(Owned).ok_or(Raised)
    }

    /// Hands the reference over to C.
    #[inline]
    pub fn into_ptr(self) -> *mut PyObject {
        let p = self.ptr();
        std::mem::forget(self);
        p
    }

    #[inline]
    pub fn get(&self) -> Obj<'_> {
        Obj(self.0, PhantomData)
    }

    #[inline]
    pub fn ptr(&self) -> *mut PyObject {
        self.0.as_ptr()
    }

    pub fn of_py<T>(value: pyo3::Py<T>) -> Owned {
        // SAFETY: into_ptr gives an owned, non-null reference.
        unsafe { Owned(NonNull::new_unchecked(value.into_ptr())) }
    }

    pub fn into_py(self, py: pyo3::Python<'_>) -> pyo3::Py<pyo3::PyAny> {
        // SAFETY: an owned, non-null reference is handed over.
        unsafe { pyo3::Py::from_owned_ptr(py, self.into_ptr()) }
    }

    pub fn into_bound(self, py: pyo3::Python<'_>) -> pyo3::Bound<'_, pyo3::PyAny> {
        self.into_py(py).into_bound(py)
    }

    pub fn none() -> Owned {
        Obj::none().own()
    }

    pub fn bool(value: bool) -> Owned {
        // SAFETY: *gil*; the two singletons are immortal or hold references of their own.
        unsafe { Obj::borrow(if value { Py_True() } else { Py_False() }).own() }
    }

    pub fn int(value: i64) -> Res<Owned> {
        // SAFETY: *gil*.
        unsafe { Owned::steal(PyLong_FromLongLong(value)) }
    }

    pub fn float(value: f64) -> Res<Owned> {
        // SAFETY: *gil*.
        unsafe { Owned::steal(PyFloat_FromDouble(value)) }
    }

    pub fn str(value: &str) -> Res<Owned> {
        // SAFETY: *gil*; the pointer and length describe valid UTF-8.
        unsafe { Owned::steal(PyUnicode_FromStringAndSize(value.as_ptr().cast(), value.len() as Py_ssize_t)) }
    }

    /// An interned string.
    pub fn interned(value: &str) -> Res<Owned> {
        let mut p = Owned::str(value)?.into_ptr();
        // SAFETY: *gil*; `p` is an owned str, replaced by its interned twin.
        unsafe {
            PyUnicode_InternInPlace(&mut p);
            Owned::steal(p)
        }
    }

    pub fn tuple(items: &[Obj]) -> Res<Owned> {
        // SAFETY: *gil*; every slot of the fresh tuple is filled with a new reference.
        unsafe {
            let t = Owned::steal(PyTuple_New(items.len() as Py_ssize_t))?;
            for (i, item) in items.iter().enumerate() {
                PyTuple_SET_ITEM(t.ptr(), i as Py_ssize_t, item.own().into_ptr());
            }
            Ok(t)
        }
    }

    pub fn tuple_from(items: Vec<Owned>) -> Res<Owned> {
        // SAFETY: *gil*; every slot of the fresh tuple takes over one reference.
        unsafe {
            let t = Owned::steal(PyTuple_New(items.len() as Py_ssize_t))?;
            for (i, item) in items.into_iter().enumerate() {
                PyTuple_SET_ITEM(t.ptr(), i as Py_ssize_t, item.into_ptr());
            }
            Ok(t)
        }
    }

    pub fn list_from(items: Vec<Owned>) -> Res<Owned> {
        // SAFETY: *gil*; every slot of the fresh list takes over one reference.
        unsafe {
            let t = Owned::steal(PyList_New(items.len() as Py_ssize_t))?;
            for (i, item) in items.into_iter().enumerate() {
                PyList_SET_ITEM(t.ptr(), i as Py_ssize_t, item.into_ptr());
            }
            Ok(t)
        }
    }

    pub fn list(items: &[Obj]) -> Res<Owned> {
        Owned::list_from(items.iter().map(|o| o.own()).collect())
    }

    pub fn dict() -> Res<Owned> {
        // SAFETY: *gil*.
        unsafe { Owned::steal(PyDict_New()) }
    }

    /// A function of `code` and `globals` with `closure`.
    pub fn function(code: Obj, globals: Obj, closure: Obj) -> Res<Owned> {
        // SAFETY: *gil*; SetClosure checks that the closure is a tuple.
        unsafe {
            let f = Owned::steal(PyFunction_New(code.ptr(), globals.ptr()))?;
            if PyFunction_SetClosure(f.ptr(), closure.ptr()) < 0 {
                return Err(Raised);
            }
            Ok(f)
        }
    }
}

/// Strong references to many objects at once.
pub struct References(SmallVec<[NonNull<PyObject>; 16]>);

impl References {
    #[inline]
    pub fn new(objects: &[Obj]) -> References {
        objects.iter().for_each(|o| std::mem::forget(o.own()));
        // SAFETY: an Obj is a transparent wrapper of the pointer.
        References(SmallVec::from_slice(unsafe { std::slice::from_raw_parts(objects.as_ptr().cast(), objects.len()) }))
    }
}

impl Drop for References {
    #[inline]
    fn drop(&mut self) {
        self.0.iter().for_each(|o| drop(Owned(*o)));
    }
}

/// Drops the pending exception.  An exception that is no `Exception` (Ctrl-C, an exit) is raised again a little later.
pub fn clear_error() {
    // SAFETY: *gil*; an exception may or may not be set.
    unsafe {
        if !PyErr_Occurred().is_null() && PyErr_ExceptionMatches(PyExc_Exception) == 0 {
            raise_later();
        }
        PyErr_Clear();
    }
}

/// Whether the pending exception is an `Exception`, and not one like Ctrl-C or an exit.
pub fn is_error() -> bool {
    // SAFETY: *gil*; an exception is set.
    unsafe { PyErr_ExceptionMatches(PyExc_Exception) != 0 }
}

/// Whether the pending exception reports a shortage of memory or stack, which any operation may raise.
pub fn is_shortage() -> bool {
    // SAFETY: *gil*; an exception is set.
    unsafe { PyErr_ExceptionMatches(PyExc_MemoryError) != 0 || PyErr_ExceptionMatches(PyExc_RecursionError) != 0 }
}

/// Drops the pending exception of a query that raises no exception itself.  Unless memory or stack were short, a signal
/// handler raised it during the query; then it is raised again a little later.
pub fn clear_foreign_error() {
    if !is_shortage() {
        raise_later();
    }
    // SAFETY: *gil*.
    unsafe { PyErr_Clear() }
}

/// Raises the pending exception again when this thread next runs Python code.  In threads that run no signal handlers,
/// CPython can only raise an exception class, so only the class is used.
fn raise_later() {
    extern "C" fn raise(error: *mut std::ffi::c_void) -> std::ffi::c_int {
        // SAFETY: *gil*; the reference was taken below.
        unsafe { restore_error(error.cast()) }
        -1
    }
    // SAFETY: *gil*; an exception is set, and the reference is given up or handed on; a thread is known by its `pthread_self`.
    unsafe {
        let error = take_error();
        if !is_main_thread() {
            PyThreadState_SetAsyncExc(libc::pthread_self() as _, Py_TYPE(error).cast());
            Py_XDECREF(error);
        } else if Py_AddPendingCall(Some(raise), error.cast()) < 0 {
            Py_XDECREF(error);
            PyErr_SetInterrupt(); // too many calls are pending
        }
    }
}

/// Whether this thread is the main thread of the process.
fn is_main_thread() -> bool {
    // SAFETY: without preconditions.
    #[cfg(target_os = "linux")]
    return unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) };
    // SAFETY: as above.
    #[cfg(target_os = "macos")]
    return unsafe { libc::pthread_main_np() != 0 };
    #[cfg(not(any(target_os = "linux", target_os = "macos")))]
    true
}

/// Takes the pending exception, as a new reference.  No exception is pending afterwards.
///
/// # Safety
/// *gil*; an exception is set.
pub unsafe fn take_error() -> *mut PyObject {
    let (mut class, mut error, mut trace) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    PyErr_Fetch(&mut class, &mut error, &mut trace);
    PyErr_NormalizeException(&mut class, &mut error, &mut trace);
    if !trace.is_null() {
        PyException_SetTraceback(error, trace);
    }
    Py_XDECREF(class);
    Py_XDECREF(trace);
    error
}

/// Evaluates `question` on the pending exception, which is pending again afterwards.  If the question raises, its
/// exception is pending instead.
pub fn pending(question: impl FnOnce(Obj) -> Res<bool>) -> bool {
    // SAFETY: *gil*; an exception is set; the reference that is taken is given back by restoring it.
    unsafe {
        let Ok(error) = Owned::steal(take_error()) else { return false };
        let answer = question(error.get());
        if answer.is_ok() {
            restore_error(error.into_ptr());
        }
        answer.unwrap_or(false)
    }
}

/// Raises the exception with its own traceback.
///
/// # Safety
/// *gil*; `error` is an exception, and its reference is taken.
unsafe fn restore_error(error: *mut PyObject) {
    let class: *mut PyObject = Py_TYPE(error).cast();
    Py_INCREF(class);
    PyErr_Restore(class, error, PyException_GetTraceback(error));
}

/// Drops the pending exception if it is an instance of `class`.
pub fn caught(class: Obj) -> bool {
    // SAFETY: *gil*; an exception is set, `class` is an exception class.
    unsafe {
        let found = PyErr_ExceptionMatches(class.ptr()) != 0;
        if found {
            PyErr_Clear();
        }
        found
    }
}

/// Runs pending signal handlers (Ctrl-C).
pub fn check_signals() -> Res<()> {
    // SAFETY: *gil*.
    if unsafe { PyErr_CheckSignals() } < 0 {
        return Err(Raised);
    }
    Ok(())
}

pub fn raise(class: Obj, text: &str) -> Raised {
    if let Ok(message) = Owned::str(text) {
        // SAFETY: *gil*; `class` is an exception class.
        unsafe { PyErr_SetObject(class.ptr(), message.ptr()) }
    }
    Raised
}

pub fn type_error(text: &str) -> Raised {
    // SAFETY: *gil*; the exception classes live as long as the interpreter.
    raise(unsafe { Obj::borrow(PyExc_TypeError) }, text)
}

pub fn runtime_error(text: &str) -> Raised {
    // SAFETY: as in type_error.
    raise(unsafe { Obj::borrow(PyExc_RuntimeError) }, text)
}

/// Sets a MemoryError.  The interpreter keeps a spare instance for this.
#[cold]
pub fn no_memory() -> Raised {
    // SAFETY: *gil*.
    unsafe { PyErr_NoMemory() };
    Raised
}

pub fn value_error(text: &str) -> Raised {
    // SAFETY: as in type_error.
    raise(unsafe { Obj::borrow(PyExc_ValueError) }, text)
}

extern "C" {
    fn PyImport_GetModule(name: *mut PyObject) -> *mut PyObject;
}

/// Returns a module.  A loaded module comes from `sys.modules`, not from an `__import__` that the program has replaced.
pub fn import(name: &CStr) -> Res<Owned> {
    // SAFETY: *gil*; a NUL-terminated name; a new reference, or null with or without an exception.
    unsafe {
        let text = Owned::steal(PyUnicode_FromString(name.as_ptr()))?;
        match Owned::steal(PyImport_GetModule(text.ptr())) {
            Ok(module) => Ok(module),
            Err(Raised) if !PyErr_Occurred().is_null() => Err(Raised),
            Err(Raised) => Owned::steal(PyImport_ImportModule(name.as_ptr())),
        }
    }
}

impl From<pyo3::PyErr> for Raised {
    fn from(e: pyo3::PyErr) -> Raised {
        pyo3::Python::attach(|py| e.restore(py));
        Raised
    }
}

impl From<Raised> for pyo3::PyErr {
    fn from(_: Raised) -> pyo3::PyErr {
        pyo3::Python::attach(pyo3::PyErr::fetch)
    }
}

impl<'a> Obj<'a> {
    /// # Safety
    /// `p` is a non-null object that stays alive while the result is used (*live*).
    #[inline]
    pub unsafe fn borrow(p: *mut PyObject) -> Obj<'a> {
        Obj(NonNull::new_unchecked(p), PhantomData)
    }

    /// # Safety
    /// `p` is null or as for `borrow`.
    #[inline]
    pub unsafe fn borrow_opt(p: *mut PyObject) -> Option<Obj<'a>> {
        NonNull::new(p).map(|p| Obj(p, PhantomData))
    }

    pub fn of(value: &'a pyo3::Bound<'_, pyo3::PyAny>) -> Obj<'a> {
        // SAFETY: a Bound is non-null, and owns a reference.
        unsafe { Obj::borrow(value.as_ptr()) }
    }

    pub fn to_bound<'py>(self, py: pyo3::Python<'py>) -> pyo3::Bound<'py, pyo3::PyAny> {
        // SAFETY: *live*; a new reference is taken.
        unsafe { pyo3::Bound::from_borrowed_ptr(py, self.ptr()) }
    }

    #[inline]
    pub fn ptr(self) -> *mut PyObject {
        self.0.as_ptr()
    }

    #[inline]
    pub fn id(self) -> usize {
        self.0.as_ptr() as usize
    }

    #[inline]
    pub fn own(self) -> Owned {
        // SAFETY: *gil*, *live*.
        unsafe { Py_INCREF(self.ptr()) };
        Owned(self.0)
    }

    #[inline]
    pub fn none() -> Obj<'static> {
        // SAFETY: None is never freed.
        unsafe { Obj::borrow(Py_None()) }
    }

    /// A borrowed reference to an object whose reference is never dropped.
    pub fn forever(value: Owned) -> Obj<'static> {
        Obj(std::mem::ManuallyDrop::new(value).0, PhantomData)
    }

    /// For a structure that names the owner of the object.
    #[inline]
    pub fn store(self) -> Stored {
        Stored(self.0)
    }

    #[inline]
    pub fn is_none(self) -> bool {
        self == Obj::none()
    }

    #[inline]
    pub fn class(self) -> Obj<'a> {
        // SAFETY: *live*: an object holds its type.
        unsafe { Obj::borrow(Py_TYPE(self.ptr()).cast()) }
    }

    #[inline]
    pub(super) fn has_class(self, ty: *mut PyTypeObject) -> bool {
        self.class().ptr() == ty.cast()
    }

    #[inline]
    pub(super) fn class_flag(self, flag: std::ffi::c_ulong) -> bool {
        // SAFETY: *live*.
        unsafe { PyType_HasFeature(Py_TYPE(self.ptr()), flag) != 0 }
    }

    /// The token of the GIL, which is held while a borrowed reference exists (rule *gil*).
    #[inline]
    pub fn py(self) -> Python<'a> {
        // SAFETY: *gil*.
        unsafe { held() }
    }

    pub fn refcount(self) -> isize {
        // SAFETY: *live*.
        unsafe { Py_REFCNT(self.ptr()) as isize }
    }
}

/// A strong reference to an instance of a PyO3 class of the engine, cheap to dereference.  As `Obj`, it is not `Send`.
pub struct Handle<T>(ManuallyDrop<Py<T>>, PhantomData<Obj<'static>>);

impl<T> Handle<T> {
    #[inline]
    pub fn obj(&self) -> Obj<'_> {
        // SAFETY: a Py is non-null and this handle holds it.
        unsafe { Obj::borrow(self.0.as_ptr()) }
    }
}

impl<T: PyTypeInfo> Handle<T> {
    pub fn downcast(o: Obj) -> Option<Handle<T>> {
        Python::attach(|py| {
            let bound = o.to_bound(py);
            bound.cast::<T>().ok().map(|t| Handle(ManuallyDrop::new(t.clone().unbind()), PhantomData))
        })
    }
}

impl<T> Clone for Handle<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: *gil*: a reference is added and handed to the new handle.
        unsafe {
            Py_INCREF(self.0.as_ptr());
            Handle(ManuallyDrop::new(std::ptr::read(&*self.0)), PhantomData)
        }
    }
}

impl<T> Drop for Handle<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: *gil*: this handle owns one reference; the Py inside is never dropped.
        unsafe { Py_DECREF(self.0.as_ptr()) }
    }
}

impl<T: PyClass<Frozen = True> + Sync> std::ops::Deref for Handle<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.0.get()
    }
}

/// The token of the GIL, which the garbage collector holds.  The visitor runs no Python code with it.
pub fn collector<'a>(_: &'a pyo3::PyVisit<'_>) -> Python<'a> {
    // SAFETY: *gil*: PyO3 passes a visitor to `__traverse__` only.
    unsafe { held() }
}

/// Shows a reference of the visited object to the garbage collector.
pub fn visit_obj(visit: &pyo3::PyVisit<'_>, o: Obj) -> Result<(), pyo3::PyTraverseError> {
    // SAFETY: a Py made of a borrowed pointer and never dropped.
    let py: ManuallyDrop<Py<pyo3::PyAny>> =
        unsafe { ManuallyDrop::new(std::mem::transmute::<Obj<'_>, Py<pyo3::PyAny>>(o)) };
    visit.call(&*py)
}
