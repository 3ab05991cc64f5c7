//! The Python type `_native.Plan`: what `ffi::aten::pytype` asks of a plan.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Plan;
use crate::ffi::aten::pytype::{Executable, Taken};
use crate::ffi::aten::Object;
use crate::ffi::class::Class;

static CLASS: Class<Plan> = Class::new();

impl Executable for Plan {
    const NAME: &'static CStr = c"pycompiler._native.Plan";
    const DOC: &'static CStr = c"Plan(plan): executes an ir.plan.Plan natively; called with the inputs (or one list of them, which it empties), returns a tuple.";
    const ATTRIBUTES: &'static [&'static CStr] =
        &[c"name", c"plan", c"n_inputs", c"n_outputs", c"routes", c"arena_bytes", c"exclusive"];

    #[inline]
    fn class() -> &'static Class<Self> {
        &CLASS
    }

    fn new(args: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let keywords = kwargs.map_or(Ok(0), |d| d.len())?;
        if args.len()? != 1 || keywords != 0 {
            return Err(PyTypeError::new_err("Plan(plan) takes one argument, an ir.plan.Plan"));
        }
        Plan::build(&args.get_item(0)?)
    }

    fn name(&self) -> &str {
        &self.name
    }

    #[inline]
    fn n_outputs(&self) -> usize {
        self.outputs.len()
    }

    fn needs(&self, input: usize) -> bool {
        Plan::needs(self, input)
    }

    #[inline]
    fn run<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Object<'_>],
        taken: Option<&Taken>,
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        self.run_on(py, inputs, taken, sink)
    }

    fn held(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.constants.iter().map(|c| &c.object).chain(std::iter::once(&self.source)).chain(self.exclusive.held())
    }

    fn attribute<'py>(&self, py: Python<'py>, which: usize) -> PyResult<Bound<'py, PyAny>> {
        match which {
            0 => Ok(self.name.as_str().into_pyobject(py)?.into_any()),
            1 => Ok(self.source.bind(py).clone()),
            2 => Ok(self.n_inputs.into_pyobject(py)?.into_any()),
            3 => Ok(self.n_outputs().into_pyobject(py)?.into_any()),
            4 => self.routes().into_pyobject(py),
            5 => Ok(self.blocks.iter().map(|block| block.bytes).sum::<usize>().into_pyobject(py)?.into_any()),
            _ => Ok(match self.exclusive.parts() {
                Some((written, eager)) => (written.to_vec(), eager.bind(py)).into_pyobject(py)?.into_any(),
                None => py.None().into_bound(py),
            }),
        }
    }

    fn repr(&self) -> String {
        self.to_string()
    }
}
