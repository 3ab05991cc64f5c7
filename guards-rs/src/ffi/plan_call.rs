//! Runs a native plan from the engine, without a Python call in between.

use super::aten::pytype::{self, Executable, InputList};
use super::aten::Object;
use super::object::{Obj, Owned, Raised, Res};
use pyo3::ffi::PyObject;
use pyo3::Python;
use smallvec::SmallVec;
use std::ptr::null_mut;

pub type Outputs = SmallVec<[Owned; 4]>;

/// The outputs of the plan `target`.  None if `target` is another callable.
#[inline]
pub fn run_plan<P: Executable>(target: Obj, inputs: &[Obj]) -> Option<Res<Outputs>> {
    // SAFETY: *gil*, *live*: the entry holds its target, the caller its inputs; an Obj has the layout of a pointer;
    // after success every output is a new reference.
    unsafe {
        let plan = pytype::as_plan::<P>(target.ptr())?;
        let mut outputs: SmallVec<[*mut PyObject; 4]> = SmallVec::from_elem(null_mut(), plan.n_outputs());
        let inputs = std::slice::from_raw_parts(inputs.as_ptr().cast::<*mut PyObject>(), inputs.len());
        if let Err(error) = pytype::run(Python::assume_attached(), plan, inputs, &mut outputs) {
            return Some(Err(Raised::from(error)));
        }
        Some(outputs.into_iter().map(|p| Owned::steal(p)).collect())
    }
}

/// As `run_plan`, for inputs that may be freed after their last use.  The inputs come back if `target` is no plan.
pub fn run_plan_taking<P: Executable>(target: Obj, inputs: Outputs) -> Result<Res<Outputs>, Outputs> {
    // SAFETY: *gil*, *live*: the caller holds the target; `taken` owns the inputs until the plan gives them up, and is
    // dropped here, under the GIL.
    unsafe {
        let Some(plan) = pytype::as_plan::<P>(target.ptr()) else { return Err(inputs) };
        let taken = InputList::from_owned(inputs);
        let items: SmallVec<[*mut PyObject; 16]> = taken.items().collect();
        let mut outputs = Outputs::with_capacity(plan.n_outputs());
        let run = plan.run(Python::assume_attached(), Object::slice(&items), Some(&taken), &mut |object| {
            outputs.extend(Owned::steal(object.into_ptr()));
        });
        Ok(run.map(|()| outputs).map_err(Raised::from))
    }
}

/// Whether `target` is a plan whose results do not depend on the input.
pub fn ignores<P: Executable>(target: &Owned, input: usize) -> bool {
    // SAFETY: *gil*, *live*: an Owned is a live object.
    unsafe { pytype::as_plan::<P>(target.ptr()).is_some_and(|plan| !plan.needs(input)) }
}
