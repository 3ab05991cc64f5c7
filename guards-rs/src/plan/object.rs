//! The Python type `_native.Plan`: implements the trait of `ffi::aten::pytype` for `Plan`.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Plan;
use crate::ffi::aten::pytype::{Executable, InputList};
use crate::ffi::aten::Object;
use crate::ffi::class::Class;
use crate::ffi::{Obj, Owned, Res};

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
        taken: Option<&InputList>,
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        self.run_on(py, inputs, taken, sink)
    }

    fn held(&self) -> impl Iterator<Item = &Py<PyAny>> {
        self.constants.iter().map(|c| &c.object).chain(std::iter::once(&self.source)).chain(self.exclusive.held())
    }

    fn attribute<'py>(&self, py: Python<'py>, which: usize) -> PyResult<Bound<'py, PyAny>> {
        let int = |n: usize| Owned::int(n as i64);
        let value = match which {
            0 => Owned::str(&self.name)?,
            1 => return Ok(self.source.bind(py).clone()),
            2 => int(self.n_inputs)?,
            3 => int(self.n_outputs())?,
            4 => Owned::list_from(self.routes().iter().map(|route| Owned::str(route)).collect::<Res<_>>()?)?,
            5 => int(self.blocks.iter().map(|block| block.bytes).sum())?,
            _ => match self.exclusive.parts() {
                Some((written, eager)) => {
                    let written = Owned::list_from(written.iter().map(|at| int(*at)).collect::<Res<_>>()?)?;
                    Owned::tuple(&[*written, Obj::of(eager.bind(py))])?
                }
                None => Owned::none(),
            },
        };
        Ok(value.into_bound(py))
    }

    fn repr(&self) -> Res<Owned> {
        Owned::str(&self.to_string())
    }
}
