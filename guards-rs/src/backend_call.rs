//! Calls of a compiled graph: of the callable that a backend returned for a graph.
//!
//! In: a callable of the graph's inputs.  Out: the graph's outputs.  The frame hook is off during the call, because
//! neither the callable nor its callees are part of the program.  Outputs of a user's backend are checked on each call.

use crate::ffi::object::{clear_error, import, raise, runtime_error, Handle};
use crate::ffi::plan_call::{run_plan, Outputs};
use crate::ffi::shortage::noticed;
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, visit_obj, Obj, Owned, Raised, Res};
use crate::hook_state::paused;
use crate::plan::Plan;
use crate::registered_object;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};
use smallvec::SmallVec;
use std::rc::Rc;

/// The backend of the callable, and the number of outputs of the graph.
struct Expected {
    backend: Owned,
    n_outputs: usize,
    /// `torch.Tensor`: a single tensor is accepted as a tuple of one.
    tensor: Owned,
}

/// A callable that a backend returned, and the checks of its outputs.
struct BackendCallable {
    target: Owned,
    expected: Option<Expected>,
}

/// BackendCall(target, backend=None, n_outputs=0): calls `target` with the frame hook off.  Checks the outputs if
/// `backend` names the backend that returned `target`.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct BackendCall(GilCell<Option<Rc<BackendCallable>>>);

#[pymethods]
impl BackendCall {
    #[new]
    #[pyo3(signature = (target, backend=None, n_outputs=0))]
    fn new(target: &Bound<'_, PyAny>, backend: Option<&Bound<'_, PyAny>>, n_outputs: usize) -> PyResult<Self> {
        let tensor = import(c"torch")?.attr(c"Tensor")?;
        let expected = backend.map(|backend| Expected { backend: Obj::of(backend).own(), n_outputs, tensor });
        Ok(BackendCall(GilCell::new(Some(Rc::new(BackendCallable { target: Obj::of(target).own(), expected })))))
    }

    #[getter]
    fn target(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.made(py)?.target.clone().into_py(py))
    }

    #[pyo3(signature = (*inputs))]
    fn __call__(&self, py: Python<'_>, inputs: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        let given = noticed(|| {
            let made = self.made(py)?;
            let returned = paused(|| made.target.call_dict(Obj::of(inputs), None))?;
            match &made.expected {
                Some(expected) => expected.check(returned),
                None => Ok(returned),
            }
        })?;
        Ok(given.into_py(py))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<BackendCall of {}>", self.made(py)?.target.repr()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let held = |made: &BackendCallable| {
            visit_obj(&visit, made.target.get())?;
            made.expected.as_ref().map_or(Ok(()), |e| visit_obj(&visit, e.backend.get()))
        };
        self.0.try_read(collector(&visit), |made| made.as_deref().map_or(Ok(()), held)).unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.0.replace(py, None));
    }
}

impl BackendCall {
    fn made(&self, py: Python<'_>) -> Res<Rc<BackendCallable>> {
        self.0
            .read(py, |made| made.clone())
            .ok_or_else(|| runtime_error("this BackendCall was cleared by the collector"))
    }
}

/// Prepares `holds_arguments`.
pub fn learn_calls(target: &Owned, call: Option<&Handle<BackendCall>>) -> Res<()> {
    match call {
        None => target.learn_calls(),
        Some(call) => call.made(target.get().py())?.target.learn_calls(),
    }
}

/// Whether the callable behind `target` takes references to its arguments before it does anything else.
#[inline]
pub fn holds_arguments(target: &Owned, call: Option<&Handle<BackendCall>>) -> bool {
    match call {
        None => target.holds_arguments(),
        Some(call) => call.made(target.get().py()).is_ok_and(|made| made.target.holds_arguments()),
    }
}

/// The outputs of a graph.  `call` is `target` if that is a BackendCall.  The caller holds the inputs, unless
/// `holds_arguments`.
#[inline]
pub fn outputs_of(
    target: &Owned,
    call: Option<&Handle<BackendCall>>,
    inputs: &[Obj],
    n_outputs: usize,
) -> Res<Outputs> {
    if let Some(outputs) = run_plan::<Plan>(target.get(), inputs) {
        return outputs;
    }
    let returned = match call {
        None => paused(|| target.call(inputs, None))?,
        Some(call) => {
            let made = call.made(target.get().py())?;
            let returned = paused(|| made.target.call(inputs, None))?;
            match &made.expected {
                Some(expected) => expected.check(returned)?,
                None => returned,
            }
        }
    };
    let outputs = match () {
        () if returned.get().is_tuple() => returned,
        () if returned.get().is_list() => returned.to_tuple()?,
        () if returned.attr(c"dtype").is_ok() => Owned::tuple(&[returned.get()])?, // one tensor, not its rows
        () => {
            clear_error();
            return Err(wrong_outputs(target, &returned.repr(), n_outputs));
        }
    };
    Ok(outputs.get().tuple_items().map(Obj::own).collect())
}

impl Expected {
    /// The outputs as a tuple.  There must be as many as the graph has, and none may be None.
    fn check(&self, returned: Owned) -> Res<Owned> {
        let outputs = match () {
            () if returned.get().is_tuple() => returned,
            () if returned.get().is_list() => returned.to_tuple()?,
            () if returned.is_instance(self.tensor.get())? => Owned::tuple(&[returned.get()])?,
            () => {
                return Err(self.refuse(&format!(
                    "{} of type '{}'",
                    shortened(&returned.repr()),
                    class_name(&returned)
                )))
            }
        };
        let absent: SmallVec<[usize; 4]> =
            outputs.get().tuple_items().enumerate().filter_map(|(i, o)| o.is_none().then_some(i)).collect();
        if outputs.get().tuple_len() == self.n_outputs && absent.is_empty() {
            return Ok(outputs);
        }
        let none = if absent.is_empty() { String::new() } else { format!(" (None at {absent:?})") };
        Err(self.refuse(&format!("{} outputs{none}", outputs.get().tuple_len())))
    }

    #[cold]
    fn refuse(&self, seen: &str) -> Raised {
        let (py, backend, want) = (self.backend.get().py(), self.backend.repr(), self.n_outputs);
        raise_bad_outputs(
            py,
            &format!(
                "the callable of backend {backend} returned {seen}; expected a tuple of the graph's {want} outputs"
            ),
        )
    }
}

const SHOWN: usize = 80;

fn shortened(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

fn class_name(o: &Owned) -> String {
    let name = o.get().class().own().attr(c"__name__").and_then(|name| Ok(name.get().as_str()?.to_owned()));
    name.unwrap_or_else(|Raised| {
        clear_error();
        String::new()
    })
}

fn raise_bad_outputs(py: Python<'_>, text: &str) -> Raised {
    match registered_object::BAD_OUTPUTS.known(py) {
        Some(class) => raise(class.get(), text),
        None => runtime_error(text),
    }
}

/// The error for outputs of `target` that are not the graph's outputs.
#[cold]
pub fn wrong_outputs(target: &Owned, seen: &str, want: usize) -> Raised {
    let (py, target) = (target.get().py(), target.repr());
    raise_bad_outputs(
        py,
        &format!("the compiled graph {target} returned {seen}; expected a tuple of the graph's {want} outputs"),
    )
}
