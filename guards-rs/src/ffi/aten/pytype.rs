//! The Python type of an `Executable` (`_native.Plan`): vectorcall, garbage collection, weak references.
//!
//! A call does not attach to PyO3, because that costs as much as a small kernel.  So a call must not drop a `Py`: PyO3
//! would keep its reference until a later attach.  `Bound`s are dropped at once.
//!
//! `as_plan` and `run` are the entry points for the engine: the same plan, without a Python call in between.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void, CStr};
use std::mem::{offset_of, size_of};
use std::ptr::{addr_of_mut, null_mut};

use pyo3::ffi;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::Object;
use crate::ffi::caught;
use crate::ffi::class::Class;
use crate::ffi::object::type_error;
use crate::ffi::{Owned, Res};

/// A program that runs on tensors.
pub trait Executable: Sized + 'static {
    const NAME: &'static CStr;
    const DOC: &'static CStr;
    /// Names of the attributes, in the order of `attribute`.
    const ATTRIBUTES: &'static [&'static CStr];

    fn class() -> &'static Class<Self>;
    /// Builds the value from the arguments of the type.
    fn new(args: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyAny>>) -> PyResult<Self>;
    fn name(&self) -> &str;
    fn n_outputs(&self) -> usize;
    /// Whether the result of a call depends on the input.  If not, any object may be passed in its place.
    fn needs(&self, input: usize) -> bool;
    /// Passes the outputs to `sink` in order.  `taken`: the owner of the inputs, if each input may be freed after its
    /// last use.
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Object<'_>],
        taken: Option<&InputList>,
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()>;
    /// References that may lead back to the object, for the garbage collector.
    fn held(&self) -> impl Iterator<Item = &Py<PyAny>>;
    fn attribute<'py>(&self, py: Python<'py>, which: usize) -> PyResult<Bound<'py, PyAny>>;
    fn repr(&self) -> Res<Owned>;
}

#[repr(C)]
struct PlanObject<P> {
    base: ffi::PyObject,
    vectorcall: Option<ffi::vectorcallfunc>,
    weakrefs: *mut ffi::PyObject,
    /// From `Box::into_raw`.  Null only until `new` has finished.
    plan: *mut P,
}

/// The `P` of an object of this type.  None for any other object.
///
/// # Safety
/// `object` is a live Python object for `'a`.
pub unsafe fn as_plan<'a, P: Executable>(object: *mut ffi::PyObject) -> Option<&'a P> {
    // SAFETY: a live object; the exact type is ours, so the layout is `PlanObject` and `plan` is set by `new`.
    unsafe { P::class().is_exactly_of(object).then(|| &*(*object.cast::<PlanObject<P>>()).plan) }
}

/// `as_plan` of an object that the caller holds.
pub fn plan_of<'a, P: Executable>(object: &'a Bound<'_, PyAny>) -> Option<&'a P> {
    // SAFETY: the borrow keeps the object alive for `'a`.
    unsafe { as_plan(object.as_ptr()) }
}

/// The inputs of a call that were passed as one list.  The list is emptied, so that an input can be freed before the
/// call ends.
pub struct InputList(Box<[Cell<*mut ffi::PyObject>]>);

impl InputList {
    /// # Safety
    /// `list` is a live list.  The GIL is held now, and when the value is dropped.
    unsafe fn from_list(py: Python<'_>, list: *mut ffi::PyObject) -> PyResult<InputList> {
        // SAFETY: a live list; each item gets a reference of its own before the list drops its references.
        unsafe {
            let n = ffi::PyList_Size(list);
            let items = (0..n).map(|i| Cell::new(ffi::Py_NewRef(ffi::PyList_GetItem(list, i)))).collect();
            let taken = InputList(items);
            if ffi::PyList_SetSlice(list, 0, n, null_mut()) != 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(taken)
        }
    }

    /// The GIL is held when the value is dropped.
    pub(in crate::ffi) fn from_owned(inputs: impl IntoIterator<Item = Owned>) -> InputList {
        InputList(inputs.into_iter().map(|input| Cell::new(input.into_ptr())).collect())
    }

    /// The objects that were not given up.
    pub(in crate::ffi) fn items(&self) -> impl Iterator<Item = *mut ffi::PyObject> + '_ {
        self.0.iter().map(Cell::get)
    }

    /// Whether the input has no other holder: giving it up frees it.
    pub fn is_last(&self, input: usize) -> bool {
        let object = self.0[input].get();
        // SAFETY: null, or an object that this value holds; a count is read, under the GIL or not.
        !object.is_null() && unsafe { ffi::Py_REFCNT(object) } == 1
    }

    /// Drops an input, which must not be read any more.
    pub fn give_up(&self, _py: Python<'_>, input: usize) {
        let object = self.0[input].replace(null_mut());
        // SAFETY: null, or a reference that this value owned; the token proves the GIL.
        unsafe { ffi::Py_XDECREF(object) };
    }
}

impl Drop for InputList {
    fn drop(&mut self) {
        for object in &*self.0 {
            // SAFETY: null, or a reference that this value owns; dropped by `call`, which holds the GIL.
            unsafe { ffi::Py_XDECREF(object.replace(null_mut())) };
        }
    }
}

/// Runs a plan on borrowed objects.  Fills `outputs` (one for each output of the plan) with new references.
///
/// # Safety
/// The GIL is held; every input is a live object.  On an error the references written so far are released again.
pub unsafe fn run<P: Executable>(
    py: Python<'_>,
    plan: &P,
    inputs: &[*mut ffi::PyObject],
    outputs: &mut [*mut ffi::PyObject],
) -> PyResult<()> {
    let mut n = 0;
    let result = {
        // SAFETY: the caller's promise.
        let inputs = unsafe { Object::slice(inputs) };
        plan.run(py, inputs, None, &mut |object| {
            outputs[n] = object.into_ptr();
            n += 1;
        })
    };
    if result.is_err() {
        for object in &mut outputs[..n] {
            // SAFETY: a new reference that `plan.run` handed over.
            unsafe { ffi::Py_DECREF(*object) };
            *object = null_mut();
        }
    }
    result
}

unsafe extern "C" fn vectorcall<P: Executable>(
    callable: *mut ffi::PyObject,
    args: *const *mut ffi::PyObject,
    nargsf: usize,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter with the GIL held.
    let py = unsafe { Python::assume_attached() };
    // SAFETY: `callable` is an instance of this type, alive during the call.
    let plan: &P = unsafe { &*(*callable.cast::<PlanObject<P>>()).plan };
    // SAFETY: the vectorcall protocol: `args` holds that many live objects; `names` is null or a tuple.
    let (given, keywords) = unsafe {
        let n = ffi::PyVectorcall_NARGS(nargsf) as usize;
        let given: &[*mut ffi::PyObject] = if n == 0 { &[] } else { std::slice::from_raw_parts(args, n) };
        (given, if names.is_null() { 0 } else { ffi::PyTuple_Size(names) })
    };
    if keywords != 0 {
        type_error(&format!("graph {} takes no keyword arguments", plan.name()));
        return null_mut();
    }
    // SAFETY: live objects, as above.
    caught::object(|| unsafe { Owned::steal(call(py, plan, given)?) })
}

/// # Safety
/// `given` are live objects and the GIL is held.
unsafe fn call<P: Executable>(py: Python<'_>, plan: &P, given: &[*mut ffi::PyObject]) -> PyResult<*mut ffi::PyObject> {
    // SAFETY: live objects; `taken` owns the objects of a list until the plan gives them up.
    unsafe {
        if let [only] = given {
            if ffi::PyList_CheckExact(*only) != 0 {
                let taken = InputList::from_list(py, *only)?;
                let items: Vec<_> = taken.items().collect();
                return tuple_of(py, plan, &items, Some(&taken));
            }
        }
        tuple_of(py, plan, given, None)
    }
}

/// # Safety
/// As `call`.
unsafe fn tuple_of<P: Executable>(
    py: Python<'_>,
    plan: &P,
    inputs: &[*mut ffi::PyObject],
    taken: Option<&InputList>,
) -> PyResult<*mut ffi::PyObject> {
    let mut outputs: SmallVec<[Bound<'_, PyAny>; 4]> = SmallVec::with_capacity(plan.n_outputs());
    // SAFETY: live inputs.
    let inputs = unsafe { Object::slice(inputs) };
    plan.run(py, inputs, taken, &mut |object| outputs.push(object))?;
    // SAFETY: the tuple is filled before any other code runs, so the garbage collector never shows it half-filled.
    // Creating the tuple may collect, but the tuple is tracked only afterwards, and moving references runs no code.
    unsafe {
        let tuple = ffi::PyTuple_New(outputs.len() as isize);
        if tuple.is_null() {
            return Err(PyErr::fetch(py));
        }
        for (i, object) in outputs.into_iter().enumerate() {
            ffi::PyTuple_SET_ITEM(tuple, i as isize, object.into_ptr());
        }
        Ok(tuple)
    }
}

/// Runs the body of a slot attached to PyO3.  While the interpreter finalizes, attaching is refused and the slot
/// raises.
fn registered(body: impl FnOnce(Python<'_>) -> *mut ffi::PyObject) -> *mut ffi::PyObject {
    caught::or_raise(null_mut(), || {
        Python::try_attach(body).unwrap_or_else(|| {
            // SAFETY: the interpreter called the slot, so the GIL is held.
            unsafe { ffi::PyErr_SetString(ffi::PyExc_RuntimeError, c"the interpreter is shutting down".as_ptr()) };
            null_mut()
        })
    })
}

unsafe extern "C" fn new<P: Executable>(
    class: *mut ffi::PyTypeObject,
    args: *mut ffi::PyObject,
    kwargs: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    registered(|py| {
        // SAFETY: called by the interpreter with a live tuple and null or a dict.
        let (args, kwargs) =
            unsafe { (Bound::from_borrowed_ptr(py, args), Bound::from_borrowed_ptr_or_opt(py, kwargs)) };
        let plan = match P::new(&args, kwargs.as_ref()) {
            Ok(plan) => plan,
            Err(error) => {
                error.restore(py);
                return null_mut();
            }
        };
        // SAFETY: `class` is this type or a subclass: its allocator gives a zeroed `PlanObject`, or null.
        unsafe {
            let Some(alloc) = (*class).tp_alloc else { return null_mut() };
            let object = alloc(class, 0).cast::<PlanObject<P>>();
            if !object.is_null() {
                (*object).vectorcall = Some(vectorcall::<P>);
                (*object).weakrefs = null_mut();
                (*object).plan = Box::into_raw(Box::new(plan));
            }
            object.cast()
        }
    })
}

unsafe extern "C" fn dealloc<P: Executable>(object: *mut ffi::PyObject) {
    // SAFETY: the last reference is gone; the type is ours; the plan is freed once.
    unsafe {
        ffi::PyObject_GC_UnTrack(object.cast());
        let this = object.cast::<PlanObject<P>>();
        if !(*this).weakrefs.is_null() {
            ffi::PyObject_ClearWeakRefs(object);
        }
        let plan = std::mem::replace(&mut *addr_of_mut!((*this).plan), null_mut());
        if !plan.is_null() {
            // Attached, so that the plan's references are dropped at once.  While the interpreter finalizes, they may
            // leak.
            let mut plan = Some(Box::from_raw(plan));
            let attached = caught::or_report(Some(()), || Python::try_attach(|_| plan = None));
            if attached.is_none() {
                std::mem::forget(plan);
            }
        }
        let class = ffi::Py_TYPE(object);
        if let Some(free) = (*class).tp_free {
            free(object.cast());
        }
        ffi::Py_DECREF(class.cast());
    }
}

/// Visits the references that may lead back to this object.  Other references of a plan (operators, plain constants)
/// are not visited, which only makes the garbage collector more conservative.
unsafe extern "C" fn traverse<P: Executable>(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: a live instance; `visit` is the collector's.
    unsafe {
        let code = visit(ffi::Py_TYPE(object).cast(), arg);
        let plan = (*object.cast::<PlanObject<P>>()).plan;
        if code != 0 || plan.is_null() {
            return code;
        }
        caught::or_else(0, || (*plan).held().map(|held| visit(held.as_ptr(), arg)).find(|code| *code != 0).unwrap_or(0))
    }
}

unsafe extern "C" fn attribute<P: Executable>(object: *mut ffi::PyObject, which: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: called by the interpreter on a live instance of this type.
    let plan: &P = unsafe { &*(*object.cast::<PlanObject<P>>()).plan };
    registered(|py| match plan.attribute(py, which as usize) {
        Ok(value) => value.into_ptr(),
        Err(error) => {
            error.restore(py);
            null_mut()
        }
    })
}

unsafe extern "C" fn repr<P: Executable>(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: as `attribute`.
    let plan: &P = unsafe { &*(*object.cast::<PlanObject<P>>()).plan };
    caught::object(|| plan.repr())
}

/// Creates the type.
pub fn create<P: Executable>(py: Python<'_>) -> PyResult<Py<PyAny>> {
    let member = |name: &'static CStr, offset: usize| ffi::PyMemberDef {
        name: name.as_ptr(),
        type_code: ffi::Py_T_PYSSIZET,
        offset: offset as ffi::Py_ssize_t,
        flags: ffi::Py_READONLY,
        doc: std::ptr::null(),
    };
    // SAFETY: an all-zero entry ends each table.
    let (no_member, no_getset): (ffi::PyMemberDef, ffi::PyGetSetDef) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // The interpreter keeps pointers to these tables, so they live as long as the process.
    let members = Box::leak(Box::new([
        member(c"__vectorcalloffset__", offset_of!(PlanObject<P>, vectorcall)),
        member(c"__weaklistoffset__", offset_of!(PlanObject<P>, weakrefs)),
        no_member,
    ]));
    let attribute = |(i, name): (usize, &&'static CStr)| ffi::PyGetSetDef {
        name: name.as_ptr(),
        get: Some(attribute::<P>),
        set: None,
        doc: std::ptr::null(),
        closure: i as *mut c_void,
    };
    let getset: Vec<ffi::PyGetSetDef> = P::ATTRIBUTES.iter().enumerate().map(attribute).chain([no_getset]).collect();
    let getset = Box::leak(getset.into_boxed_slice());
    let slot = |slot: c_int, pfunc: *mut c_void| ffi::PyType_Slot { slot, pfunc };
    let slots = Box::leak(Box::new([
        slot(ffi::Py_tp_new, new::<P> as *mut c_void),
        slot(ffi::Py_tp_dealloc, dealloc::<P> as *mut c_void),
        slot(ffi::Py_tp_traverse, traverse::<P> as *mut c_void),
        slot(ffi::Py_tp_call, ffi::PyVectorcall_Call as *mut c_void),
        slot(ffi::Py_tp_repr, repr::<P> as *mut c_void),
        slot(ffi::Py_tp_members, members.as_mut_ptr().cast()),
        slot(ffi::Py_tp_getset, getset.as_mut_ptr().cast()),
        slot(ffi::Py_tp_doc, P::DOC.as_ptr() as *mut c_void),
        slot(0, null_mut()),
    ]));
    let flags: c_long = (ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_VECTORCALL | ffi::Py_TPFLAGS_HAVE_GC) as c_long;
    let mut spec = ffi::PyType_Spec {
        name: P::NAME.as_ptr(),
        basicsize: size_of::<PlanObject<P>>() as c_int,
        itemsize: 0,
        flags: flags as _,
        slots: slots.as_mut_ptr(),
    };
    // SAFETY: the tables are complete, terminated and live for ever; the object layout matches `basicsize`.
    let class: Py<PyAny> = unsafe { Py::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&mut spec))? };
    P::class().set(Owned::of_py(class.clone_ref(py)));
    Ok(class)
}
