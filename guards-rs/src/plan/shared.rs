//! Inputs that share memory with an input that the plan writes.
//!
//! Capture assumes that a written input has memory of its own, and kernels write new values directly into it.  Both are
//! wrong if another input overlaps that memory.  So each call compares the addresses, and runs the captured program
//! eagerly if two of them overlap.

use std::sync::OnceLock;

use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{Plan, Slot};
use crate::ffi::aten::pytype::{self, Executable};
use crate::ffi::aten::{Handle, Object, Outcome, UnwrappedTensor};
use crate::ffi::{Obj, Owned};

/// The program that runs instead of a plan if a written input shares memory with another input.  Set before the first
/// call.
#[derive(Default)]
pub struct Exclusive(OnceLock<(Box<[usize]>, Py<PyAny>)>);

impl Exclusive {
    /// The eager program, if these inputs need it.
    pub fn instead(&self, inputs: &[Slot]) -> Option<&Py<PyAny>> {
        let (written, eager) = self.0.get()?;
        let filled = |slot: &Slot| (!matches!(slot, Slot::Empty)).then(|| slot.handle());
        shares(inputs.iter().map(filled), written).then_some(eager)
    }

    /// The written inputs and the eager program, as given to `unless_shared`.
    pub fn parts(&self) -> Option<(&[usize], &Py<PyAny>)> {
        self.0.get().map(|(written, eager)| (&**written, eager))
    }

    pub fn held(&self) -> Option<&Py<PyAny>> {
        self.0.get().map(|(_, eager)| eager)
    }
}

/// Runs the captured program eagerly and passes its outputs to `sink` in order.
#[cold]
pub fn run_eager<'py>(
    plan: &Plan,
    py: Python<'py>,
    eager: &Py<PyAny>,
    inputs: &[Object<'_>],
    sink: &mut dyn FnMut(Bound<'py, PyAny>),
) -> PyResult<()> {
    let inputs = inputs.iter().map(|input| Owned::of_py(input.to_bound(py).unbind())).collect();
    let outputs = Obj::of(eager.bind(py)).own().call_dict(Owned::tuple_from(inputs)?.get(), None)?.into_bound(py);
    let outputs = outputs.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    if outputs.len() != plan.n_outputs() {
        let text =
            format!("graph {}: {} outputs, the eager program gave {}", plan.name, plan.n_outputs(), outputs.len());
        return Err(PyRuntimeError::new_err(text));
    }
    outputs.into_iter().for_each(sink);
    Ok(())
}

/// Whether a tensor at `written` (in ascending order) overlaps the memory of another tensor.  Unreadable memory counts
/// as shared.
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
    meet(&mut spans)
}

/// Whether a written span overlaps another span.  A span is: first byte, end, whether it is written.
fn meet(spans: &mut [(usize, usize, bool)]) -> bool {
    spans.sort_unstable();
    let (mut end_of_all, mut end_of_written) = (0, 0);
    spans.iter().any(|&(start, end, is_written)| {
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

/// `_native.unless_shared(plan, written, eager)`: makes later calls of `plan` return `eager(*inputs)` if an input at a
/// position in `written` shares memory with another input.
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

/// `_native.shares_memory(values, written)`: whether a tensor at a position in `written` overlaps the memory of another
/// one.  Objects that are no tensors overlap nothing.
#[pyfunction]
pub fn shares_memory(py: Python<'_>, values: &Bound<'_, PyTuple>, written: Vec<usize>) -> PyResult<bool> {
    crate::tensor_view::ready(py)?;
    let tensors: Vec<_> = values.iter().map(|value| Object::from_bound(&value).tensor(py).ok()).collect();
    let handle = |tensor: &Option<UnwrappedTensor>| {
        tensor.as_ref().map(|tensor| match tensor {
            UnwrappedTensor::Borrowed(handle) => Ok(*handle),
            UnwrappedTensor::Owned(tensor) => Ok(tensor.handle()),
        })
    };
    Ok(shares(tensors.iter().map(handle), &rising(written)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same result, computed pair by pair.
    fn by_pairs(spans: &[(usize, usize, bool)]) -> bool {
        let pairs = spans.iter().enumerate().flat_map(|(i, a)| spans[i + 1..].iter().map(move |b| (a, b)));
        pairs.into_iter().any(|(a, b)| (a.2 || b.2) && a.0 < b.1 && b.0 < a.1)
    }

    #[test]
    fn spans_meet_as_pairs_do() {
        let mut seed = 7u64;
        let mut next = |n: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((seed >> 33) % n) as usize
        };
        let mut seen = [0, 0];
        for _ in 0..2000 {
            let mut spans: Vec<_> = (0..1 + next(5))
                .map(|_| {
                    let start = next(40);
                    (start, start + 1 + next(12), next(3) == 0)
                })
                .collect();
            let wanted = by_pairs(&spans);
            assert_eq!(meet(&mut spans), wanted, "{spans:?}");
            seen[usize::from(wanted)] += 1;
        }
        assert!(seen[0] > 300 && seen[1] > 300);
    }

    #[test]
    fn neighbours_do_not_meet() {
        assert!(!meet(&mut [(0, 4, true), (4, 8, true), (8, 12, false)]));
        assert!(meet(&mut [(0, 5, true), (4, 8, false)]));
        assert!(!meet(&mut [(0, 5, false), (4, 8, false), (2, 3, false)]));
        assert!(meet(&mut [(0, 100, false), (1, 2, false), (50, 51, true)]));
    }

    #[test]
    fn positions_are_put_in_order() {
        assert_eq!(*rising(vec![5, 1, 3]), [1, 3, 5]);
    }
}
