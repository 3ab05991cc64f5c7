//! Inputs that share memory with an input that the plan writes.
//!
//! A graph is captured as if inputs that are written were memory of their own, and kernels store new values straight into
//! them.  Both are wrong where another input is (part of) the same memory, so each call looks at the addresses, and
//! runs the captured program eagerly when two meet.

use std::sync::OnceLock;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Plan, Slot};
use crate::ffi::aten::pytype::{self, Executable};
use crate::ffi::aten::{Handle, Object, Outcome, Unwrapped};

/// What runs instead of a plan when an input that it writes shares memory with another one.  Set before the first call.
#[derive(Default)]
pub struct Exclusive(OnceLock<(Box<[usize]>, Py<PyAny>)>);

impl Exclusive {
    /// The program to run instead, when these inputs need it.
    pub fn instead(&self, inputs: &[Slot]) -> Option<&Py<PyAny>> {
        let (written, eager) = self.0.get()?;
        let filled = |slot: &Slot| (!matches!(slot, Slot::Empty)).then(|| slot.handle());
        shares(inputs.iter().map(filled), written).then_some(eager)
    }

    /// The written inputs and that program, as `unless_shared` was given them.
    pub fn parts(&self) -> Option<(&[usize], &Py<PyAny>)> {
        self.0.get().map(|(written, eager)| (&**written, eager))
    }

    pub fn held(&self) -> Option<&Py<PyAny>> {
        self.0.get().map(|(_, eager)| eager)
    }
}

/// Runs the captured program on the inputs; hands its outputs to `sink` in order.
#[cold]
pub fn run_eager<'py>(
    plan: &Plan,
    py: Python<'py>,
    eager: &Py<PyAny>,
    inputs: &[Object<'_>],
    sink: &mut dyn FnMut(Bound<'py, PyAny>),
) -> PyResult<()> {
    let inputs = PyTuple::new(py, inputs.iter().map(|input| input.to_bound(py)))?;
    let outputs = eager.bind(py).call1(inputs)?.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    if outputs.len() != plan.n_outputs() {
        let text =
            format!("graph {}: {} outputs, the eager program gave {}", plan.name, plan.n_outputs(), outputs.len());
        return Err(PyRuntimeError::new_err(text));
    }
    outputs.into_iter().for_each(sink);
    Ok(())
}

/// Whether one of the tensors at `written` (in rising order) touches the memory of another tensor.  Memory that cannot be
/// read counts as shared.
fn shares(tensors: impl Iterator<Item = Option<Outcome<Handle>>>, written: &[usize]) -> bool {
    let mut spans: Vec<(usize, usize, bool)> = Vec::with_capacity(tensors.size_hint().0);
    for (i, tensor) in tensors.enumerate() {
        match tensor.map(|handle| handle.and_then(Handle::span)) {
            None => {}
            Some(Ok((start, end))) if start == end => {}
            Some(Ok((start, end))) => spans.push((start, end, written.binary_search(&i).is_ok())),
            Some(Err(_)) => return true,
        }
    }
    spans.sort_unstable();
    let (mut end_of_all, mut end_of_written) = (0, 0);
    spans.into_iter().any(|(start, end, is_written)| {
        let meets = start < if is_written { end_of_all } else { end_of_written };
        end_of_all = end_of_all.max(end);
        if is_written {
            end_of_written = end_of_written.max(end);
        }
        meets
    })
}

fn rising(mut written: Vec<usize>) -> Box<[usize]> {
    written.sort_unstable();
    written.into()
}

/// `_native.unless_shared(plan, written, eager)`: from now on `plan` calls `eager` with its inputs, and gives back what it
/// returns, when an input at one of the positions `written` shares memory with another input.
#[pyfunction]
pub fn unless_shared(plan: &Bound<'_, PyAny>, written: Vec<usize>, eager: Py<PyAny>) -> PyResult<()> {
    let native = pytype::plan_of::<Plan>(plan)
        .ok_or_else(|| PyTypeError::new_err("unless_shared(plan, written, eager) takes a _native.Plan"))?;
    if let Some(slot) = written.iter().find(|slot| **slot >= native.n_inputs) {
        return Err(PyValueError::new_err(format!("input {slot} of a plan with {} inputs", native.n_inputs)));
    }
    native.exclusive.0.set((rising(written), eager)).map_err(|_| {
        PyRuntimeError::new_err(format!("graph {}: unless_shared is called twice, expected once", native.name))
    })
}

/// `_native.shares_memory(values, written)`: whether one of the tensors at the positions `written` touches the memory of
/// another one.  What is no tensor touches nothing.
#[pyfunction]
pub fn shares_memory(py: Python<'_>, values: &Bound<'_, PyTuple>, written: Vec<usize>) -> PyResult<bool> {
    crate::tensor_view::ready(py)?;
    let tensors: Vec<_> = values.iter().map(|value| Object::from_bound(&value).tensor(py).ok()).collect();
    let handle = |tensor: &Option<Unwrapped>| {
        tensor.as_ref().map(|tensor| match tensor {
            Unwrapped::Borrowed(handle) => Ok(*handle),
            Unwrapped::Owned(tensor) => Ok(tensor.handle()),
        })
    };
    Ok(shares(tensors.iter().map(handle), &rising(written)))
}
