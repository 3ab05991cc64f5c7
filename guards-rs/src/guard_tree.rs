//! `GuardTree`: the native check of one guard list, for tests and tools.

use crate::ffi::object::type_error;
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, visit_obj, Obj, Owned, Res, Stored};
use crate::guard::tree::Tree;
use crate::guard::GuardWalk;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use std::rc::Rc;

struct Contents {
    tree: Tree,
    names: Vec<Owned>,
    guards: Owned,
}

/// GuardTree(guards, param_names): the check of an entry, on a dict of locals.
#[pyclass(frozen, module = "pycompiler._native")]
pub struct GuardTree(GilCell<Option<Rc<Contents>>>);

#[pymethods]
impl GuardTree {
    #[new]
    fn new(guards: &Bound<'_, PyAny>, param_names: &Bound<'_, PyAny>) -> PyResult<Self> {
        let guards = Obj::of(guards).own().to_tuple()?;
        let names: Vec<Owned> = Obj::of(param_names).own().to_tuple()?.get().tuple_items().map(|n| n.own()).collect();
        let tree = Tree::build(guards.get(), &[], &names)?;
        Ok(GuardTree(GilCell::new(Some(Rc::new(Contents { tree, names, guards })))))
    }

    /// None, or the index of a guard that does not hold.
    fn check(&self, locals: &Bound<'_, PyAny>, globals: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = locals.py();
        let Some(contents) = self.0.read(py, |c| c.clone()) else { return Ok(py.None()) };
        let locals = Obj::of(locals).own();
        if !locals.get().is_dict() {
            return Err(type_error("GuardTree.check(locals, globals): locals must be a dict").into());
        }
        let slots: Vec<Option<Owned>> = contents.names.iter().map(|name| locals.dict_get(name)).collect::<Res<_>>()?;
        let borrowed: Vec<Option<Stored>> = slots.iter().map(|s| s.as_ref().map(|o| o.get().store())).collect();
        match contents.tree.check(&borrowed, Obj::of(globals), &mut GuardWalk::default()) {
            Ok(()) => Ok(py.None()),
            Err(index) => Ok(Owned::int(i64::from(index))?.into_py(py)),
        }
    }

    /// Number of steps of the check.  A shared prefix counts once.
    fn __len__(&self, py: Python<'_>) -> usize {
        self.0.read(py, |c| c.as_ref().map_or(0, |c| c.tree.len()))
    }

    /// Whether the next check may take the fast path.
    #[getter]
    fn is_fast(&self, py: Python<'_>) -> bool {
        self.0.read(py, |c| c.as_ref().is_some_and(|c| c.tree.is_fast(py)))
    }

    /// The number of steps that the next check evaluates, if nothing has changed.  The fast path proves the others.
    #[getter]
    fn evaluated(&self, py: Python<'_>) -> usize {
        self.0.read(py, |c| c.as_ref().map_or(0, |c| c.tree.evaluated(py)))
    }

    #[getter]
    fn guards(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.read(py, |c| c.clone()).map(|c| c.guards.clone().into_py(py))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0
            .try_read(collector(&visit), |c| {
                let Some(c) = c else { return Ok(()) };
                c.names.iter().chain([&c.guards]).try_for_each(|o| visit_obj(&visit, o.get()))?;
                c.tree.visit(collector(&visit), &mut |o| visit_obj(&visit, o))
            })
            .unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.0.replace(py, None));
    }
}
