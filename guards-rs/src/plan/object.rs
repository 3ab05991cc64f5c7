//! The Python type `_native.Plan`: implements the trait of `ffi::aten::pytype` for `Plan`.

use std::ffi::CStr;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::cuda_graphs::Graphs;
use super::Plan;
use crate::ffi::aten::pytype::{Executable, InputList};
use crate::ffi::aten::Object;
use crate::ffi::class::Class;
use crate::ffi::{Obj, Owned, Res};

static CLASS: Class<Plan> = Class::new();

impl Executable for Plan {
    const NAME: &'static CStr = c"pycompiler._native.Plan";
    const DOC: &'static CStr = c"Plan(plan, graphs=None): executes an ir.plan.Plan natively; called with the inputs (or one list of them, which it empties), returns a tuple.";
    const ATTRIBUTES: &'static [&'static CStr] =
        &[c"name", c"plan", c"n_inputs", c"n_outputs", c"routes", c"arena_bytes", c"graphs", c"exclusive"];

    #[inline]
    fn class() -> &'static Class<Self> {
        &CLASS
    }

    fn new(args: &Bound<'_, PyAny>, kwargs: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let keywords = kwargs.map_or(Ok(0), |d| d.len())?;
        let given = args.len()?;
        if !(1..=2).contains(&given) || keywords != 0 {
            return Err(PyTypeError::new_err(
                "Plan(plan) takes one argument, an ir.plan.Plan, and may take a policy of CUDA graphs",
            ));
        }
        let mut plan = Plan::build(&args.get_item(0)?)?;
        if given == 2 {
            plan.graphs = Graphs::of(&args.get_item(1)?)?;
        }
        Ok(plan)
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
        let fixed = self.constants.iter().map(|c| &c.object).chain(std::iter::once(&self.source));
        fixed.chain(self.exclusive.held()).chain(self.graphs.as_ref().map(Graphs::policy))
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
            6 => match &self.graphs {
                Some(graphs) => return Ok(graphs.policy().bind(py).clone()),
                None => Owned::none(),
            },
            _ => match self.exclusive.parts() {
                Some((written, eager)) => {
                    let written = Owned::list_from(written.iter().map(|at| int(*at)).collect::<Res<_>>()?)?;
                    Owned::tuple(&[written.get(), Obj::of(eager.bind(py))])?
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
