//! Heap types of callables, with vectorcall, descriptor protocol, garbage collection, weak references and `__dict__`.
//!
//! An object is a header around a `Callable`, which has all behaviour and lists its methods and properties.  Its type
//! is no PyO3 class, because a PyO3 class is called through an argument tuple.

use super::caught::{self, object as finish};
use super::class::Class;
use super::object::{type_error, Obj, Owned, Raised, Res};
use pyo3::ffi::*;
use std::ffi::{c_int, c_void, CStr};
use std::ptr::null_mut;

/// The behaviour of the objects of such a type.
pub trait Callable: Sized + 'static {
    const NAME: &'static CStr;
    const DOC: &'static CStr;
    /// At most `MAX_METHODS`.
    const METHODS: &'static [Method];
    const PROPERTIES: &'static [Property];

    fn class() -> &'static Class<Self>;
    fn new(args: Obj, kwargs: Option<Obj>) -> Res<Self>;
    fn call(this: Obj, args: &[Obj], kwnames: Option<Obj>) -> Res<Owned>;
    /// Continues with the function of a TailCall.
    fn go_on(call: Owned) -> Res<Owned>;
    fn repr(this: Obj) -> Res<Owned>;
    fn visit(&self, f: &mut dyn FnMut(Obj));
    fn clear(&self);
}

/// `run(this, args, keyword names)`.
pub struct Method {
    pub name: &'static CStr,
    pub doc: &'static CStr,
    pub run: fn(Obj, &[Obj], Option<Obj>) -> Res<Owned>,
}

pub struct Property {
    pub name: &'static CStr,
    pub doc: &'static CStr,
    pub get: fn(Obj) -> Res<Owned>,
    pub set: Option<fn(Obj, Obj) -> Res<()>>,
}

#[repr(C)]
struct Object<T> {
    base: PyObject,
    vectorcall: Option<vectorcallfunc>,
    dict: *mut PyObject,
    weaklist: *mut PyObject,
    /// Null only between tp_alloc and the end of tp_new.
    state: *mut T,
}

unsafe fn arguments<'a>(args: *const *mut PyObject, n: usize) -> &'a [Obj<'a>] {
    if n == 0 {
        return &[];
    }
    std::slice::from_raw_parts(args.cast::<Obj>(), n)
}

unsafe fn keywords<'a>(names: *mut PyObject) -> (Option<Obj<'a>>, usize) {
    let names = Obj::borrow_opt(names).filter(|k| k.tuple_len() > 0);
    (names, names.map_or(0, |k| k.tuple_len()))
}

unsafe extern "C" fn vectorcall<T: Callable>(
    this: *mut PyObject,
    args: *const *mut PyObject,
    nargsf: usize,
    names: *mut PyObject,
) -> *mut PyObject {
    let (names, n_names) = keywords(names);
    let args = arguments(args, PyVectorcall_NARGS(nargsf) as usize + n_names);
    finish(|| T::call(Obj::borrow(this), args, names))
}

/// The `T` of an object of this type.  None for another object.
#[inline]
pub fn state<'a, T: Callable>(o: Obj<'a>) -> Option<&'a T> {
    // SAFETY: the type was created at import, for T; a subtype has the same layout at its start; the object lives
    // (*live*).
    unsafe { T::class().is_of(o.ptr()).then(|| (*o.ptr().cast::<Object<T>>()).state.as_ref())? }
}

unsafe extern "C" fn new<T: Callable>(
    ty: *mut PyTypeObject,
    args: *mut PyObject,
    kwargs: *mut PyObject,
) -> *mut PyObject {
    finish(|| {
        let state = Box::new(T::new(Obj::borrow(args), Obj::borrow_opt(kwargs))?);
        let alloc = (*ty).tp_alloc.ok_or(Raised)?;
        let o = Owned::steal(alloc(ty, 0))?;
        let object = o.ptr().cast::<Object<T>>();
        (*object).vectorcall = Some(vectorcall::<T>);
        (*object).state = Box::into_raw(state);
        Ok(o)
    })
}

/// Accepts the arguments of `new`.
unsafe extern "C" fn init(_: *mut PyObject, _: *mut PyObject, _: *mut PyObject) -> c_int {
    0
}

unsafe extern "C" fn traverse<T: Callable>(o: *mut PyObject, visit: visitproc, arg: *mut c_void) -> c_int {
    let object = o.cast::<Object<T>>();
    let mut rc = visit(Py_TYPE(o).cast(), arg);
    if rc == 0 && !(*object).dict.is_null() {
        rc = visit((*object).dict, arg);
    }
    if let Some(state) = (*object).state.as_ref() {
        // An unvisited reference counts as held from outside, so the garbage collector keeps its object.
        caught::or_else((), || {
            state.visit(&mut |held| {
                if rc == 0 {
                    rc = visit(held.ptr(), arg);
                }
            })
        });
    }
    rc
}

unsafe extern "C" fn clear<T: Callable>(o: *mut PyObject) -> c_int {
    let object = o.cast::<Object<T>>();
    let dict = std::mem::replace(&mut (*object).dict, null_mut());
    Py_XDECREF(dict);
    if let Some(state) = (*object).state.as_ref() {
        caught::or_report((), || state.clear());
    }
    0
}

unsafe extern "C" fn dealloc<T: Callable>(o: *mut PyObject) {
    PyObject_GC_UnTrack(o.cast());
    let object = o.cast::<Object<T>>();
    if !(*object).weaklist.is_null() {
        PyObject_ClearWeakRefs(o);
    }
    let state = std::mem::replace(&mut (*object).state, null_mut());
    if !state.is_null() {
        caught::or_report((), || drop(Box::from_raw(state)));
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
    finish(|| Obj::borrow(o).own().bound_to(Obj::borrow(instance)))
}

unsafe extern "C" fn repr<T: Callable>(o: *mut PyObject) -> *mut PyObject {
    finish(|| T::repr(Obj::borrow(o)))
}

/// The method at index I.
unsafe extern "C" fn method<T: Callable, const I: usize>(
    this: *mut PyObject,
    args: *const *mut PyObject,
    n: Py_ssize_t,
    names: *mut PyObject,
) -> *mut PyObject {
    let (names, n_names) = keywords(names);
    let args = arguments(args, n as usize + n_names);
    finish(|| (T::METHODS[I].run)(Obj::borrow(this), args, names))
}

type MethodFunction =
    unsafe extern "C" fn(*mut PyObject, *const *mut PyObject, Py_ssize_t, *mut PyObject) -> *mut PyObject;

const MAX_METHODS: usize = 8;

/// CPython passes only the object to a method's function, so each method has a function of its own.
fn methods<T: Callable>() -> Vec<PyMethodDef> {
    let functions: [MethodFunction; MAX_METHODS] = [
        method::<T, 0>,
        method::<T, 1>,
        method::<T, 2>,
        method::<T, 3>,
        method::<T, 4>,
        method::<T, 5>,
        method::<T, 6>,
        method::<T, 7>,
    ];
    const { assert!(T::METHODS.len() <= MAX_METHODS) };
    let row = |(row, function): (&Method, MethodFunction)| PyMethodDef {
        ml_name: row.name.as_ptr(),
        ml_meth: PyMethodDefPointer { PyCFunctionFastWithKeywords: function },
        ml_flags: METH_FASTCALL | METH_KEYWORDS,
        ml_doc: row.doc.as_ptr(),
    };
    T::METHODS.iter().zip(functions).map(row).chain([PyMethodDef::zeroed()]).collect()
}

/// `row` is the Property.
unsafe extern "C" fn get(this: *mut PyObject, row: *mut c_void) -> *mut PyObject {
    finish(|| ((*row.cast::<Property>()).get)(Obj::borrow(this)))
}

unsafe extern "C" fn set(this: *mut PyObject, value: *mut PyObject, row: *mut c_void) -> c_int {
    let row = &*row.cast::<Property>();
    let run = || match (row.set, Obj::borrow_opt(value)) {
        (Some(set), Some(value)) => set(Obj::borrow(this), value).map(|()| Owned::none()),
        _ => Err(type_error(&format!("{} cannot be deleted", row.name.to_string_lossy()))),
    };
    let done = finish(run);
    if done.is_null() {
        return -1;
    }
    Py_DECREF(done);
    0
}

fn properties<T: Callable>() -> Vec<PyGetSetDef> {
    let row = |row: &'static Property| PyGetSetDef {
        name: row.name.as_ptr(),
        get: Some(get),
        set: row.set.map(|_| set as unsafe extern "C" fn(*mut PyObject, *mut PyObject, *mut c_void) -> c_int),
        doc: row.doc.as_ptr(),
        closure: std::ptr::from_ref(row).cast_mut().cast(),
    };
    let dict = PyGetSetDef {
        name: c"__dict__".as_ptr(),
        get: Some(PyObject_GenericGetDict),
        set: Some(PyObject_GenericSetDict),
        doc: null_mut(),
        closure: null_mut(),
    };
    // SAFETY: all-zero is the sentinel that ends the table.
    let end = unsafe { std::mem::zeroed() };
    T::PROPERTIES.iter().map(row).chain([dict, end]).collect()
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

/// Creates the type of `T`; once, at import.
pub fn make_type<T: Callable>() -> Res<Owned> {
    // The type refers to the tables for ever.
    let methods = Box::leak(methods::<T>().into_boxed_slice());
    let properties = Box::leak(properties::<T>().into_boxed_slice());
    let members = Box::leak(Box::new([
        member(c"__vectorcalloffset__", std::mem::offset_of!(Object<T>, vectorcall)),
        member(c"__dictoffset__", std::mem::offset_of!(Object<T>, dict)),
        member(c"__weaklistoffset__", std::mem::offset_of!(Object<T>, weaklist)),
        // SAFETY: all-zero is the sentinel that ends the table.
        unsafe { std::mem::zeroed() },
    ]));
    let slot = |slot, pfunc| PyType_Slot { slot, pfunc };
    let mut slots = [
        slot(Py_tp_new, new::<T> as *mut c_void),
        slot(Py_tp_init, init as *mut c_void),
        slot(Py_tp_dealloc, dealloc::<T> as *mut c_void),
        slot(Py_tp_traverse, traverse::<T> as *mut c_void),
        slot(Py_tp_clear, clear::<T> as *mut c_void),
        slot(Py_tp_call, PyVectorcall_Call as *mut c_void),
        slot(Py_tp_descr_get, descr_get as *mut c_void),
        slot(Py_tp_repr, repr::<T> as *mut c_void),
        slot(Py_tp_methods, methods.as_mut_ptr().cast()),
        slot(Py_tp_getset, properties.as_mut_ptr().cast()),
        slot(Py_tp_members, members.as_mut_ptr().cast()),
        slot(Py_tp_doc, T::DOC.as_ptr() as *mut c_void),
        slot(0, null_mut()),
    ];
    let flags = Py_TPFLAGS_DEFAULT
        | Py_TPFLAGS_HAVE_GC
        | Py_TPFLAGS_BASETYPE
        | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR;
    let mut spec = PyType_Spec {
        name: T::NAME.as_ptr(),
        basicsize: size_of::<Object<T>>() as c_int,
        itemsize: 0,
        flags: flags as u32,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: *gil*; the slots have the signatures of their ids; the tables live for ever.
    let ty = unsafe { Owned::steal(PyType_FromSpec(&mut spec)) }?;
    T::class().set(ty.clone());
    Ok(ty)
}

/// A builtin function that takes positional arguments.
macro_rules! builtin {
    ($name:literal, $doc:literal, $path:path) => {{
        unsafe extern "C" fn function(_: *mut PyObject, args: *mut *mut PyObject, n: Py_ssize_t) -> *mut PyObject {
            let args = arguments(args, n as usize);
            finish(|| $path(args))
        }
        let module = Owned::interned("pycompiler._native")?;
        let def = Box::leak(Box::new(PyMethodDef {
            ml_name: concat!($name, "\0").as_ptr().cast(),
            ml_meth: PyMethodDefPointer { PyCFunctionFast: function },
            ml_flags: METH_FASTCALL,
            ml_doc: concat!($doc, "\0").as_ptr().cast(),
        }));
        // SAFETY: *gil*; the definition lives for ever.
        unsafe { Owned::steal(PyCFunction_NewEx(def, null_mut(), module.ptr())) }
    }};
}

pub fn entered_function() -> Res<Owned> {
    builtin!(
        "entered",
        "entered()\n--\n\nCalled by code that a TailCall leads to: from now on its frame alone holds the arguments.  Returns the error to raise, or None.",
        super::tailcall::entered
    )
}

pub fn arrive_function() -> Res<Owned> {
    builtin!("arrive", "arrive(error)\n--\n\nRaises what `entered` has given, if anything.", super::tailcall::arrive)
}

/// The `tp_call` of a TailCall.
///
/// # Safety
/// As CPython calls `tp_call` of a TailCall.
pub unsafe extern "C" fn call_tail<T: Callable>(
    this: *mut PyObject,
    args: *mut PyObject,
    kwargs: *mut PyObject,
) -> *mut PyObject {
    finish(|| {
        if Obj::borrow(args).tuple_len() > 0 || !kwargs.is_null() {
            return Err(type_error("a TailCall has its arguments"));
        }
        T::go_on(Obj::borrow(this).own())
    })
}

pub fn tail_call_function() -> Res<Owned> {
    builtin!(
        "tail_call",
        "tail_call(f, *args)\n--\n\nReturned by generated code: the engine continues with f(*args).",
        super::tailcall::make
    )
}
