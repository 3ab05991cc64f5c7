//! `NodeBackward`: the backward of an autograd node, which selects the gradients for the tangents that it gets.

use super::gradients::{NodeGradients, Tangents};
use super::{cleared, items, position};
use crate::ffi::object::{runtime_error, type_error, Handle};
use crate::ffi::shortage::noticed;
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, visit_obj, Obj, Owned, Res};
use crate::guard::plain_state::PlainState;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};
use smallvec::SmallVec;
use std::rc::Rc;

/// For each tangent, whether it is missing.
type Pattern = SmallVec<[bool; 8]>;

/// See `ir.autograd_node.BackwardRecipe`.
struct Backward {
    recipe: Owned,
    is_unusual: Handle<PlainState>,
    unusual: Owned,
    find: Owned,
    /// The arguments that are tangents; others belong to outputs without a gradient.
    tangents: Box<[usize]>,
    n_inputs: usize,
    n_outputs: usize,
}

/// NodeBackward(recipe): the `backward` of an autograd Function, and as an attribute of the class of its nodes their
/// `apply`.  Called with the node and its tangents, or with the node and a list of them, which it empties: the graph then
/// frees each tangent after its last use.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct NodeBackward {
    backward: GilCell<Option<Rc<Backward>>>,
    known: GilCell<Vec<(Pattern, Handle<NodeGradients>)>>,
}

#[pymethods]
impl NodeBackward {
    #[new]
    fn new(recipe: &Bound<'_, PyAny>) -> PyResult<Self> {
        let backward = Backward::parse(Obj::of(recipe).own())?;
        Ok(NodeBackward { backward: GilCell::new(Some(Rc::new(backward))), known: GilCell::default() })
    }

    #[getter]
    fn recipe(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.recipe.clone().into_py(py))
    }

    /// Binds like a function: the class of the nodes has it as a method.
    fn __get__(
        slf: &Bound<'_, Self>,
        node: &Bound<'_, PyAny>,
        _class: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let this = Obj::of(slf.as_any()).own();
        let bound = if node.is_none() { this } else { this.bound_to(Obj::of(node))? };
        Ok(bound.into_py(slf.py()))
    }

    #[pyo3(signature = (*args))]
    fn __call__(slf: &Bound<'_, Self>, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        let called = || {
            let args: SmallVec<[Obj; 16]> = Obj::of(args).tuple_items().collect();
            let (ctx, tangents): (Obj, Tangents) = match &*args {
                [] => return Err(type_error("the backward of an autograd node takes the node, then tangents")),
                [ctx, list] if list.is_list_exact() => (*ctx, list.own().take_items()?.into()),
                [ctx, tangents @ ..] => (*ctx, tangents.iter().map(|tangent| tangent.own()).collect()),
            };
            slf.get().run(Obj::of(slf.as_any()), ctx, tangents)
        };
        Ok(noticed(called)?.into_py(slf.py()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<NodeBackward of {} tangents>", self.live(py)?.tangents.len()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let held = |backward: &Option<Rc<Backward>>| match backward {
            Some(backward) if Rc::strong_count(backward) == 1 => {
                visit_obj(&visit, backward.is_unusual.obj())?;
                [&backward.recipe, &backward.unusual, &backward.find]
                    .into_iter()
                    .try_for_each(|o| visit_obj(&visit, o.get()))
            }
            _ => Ok(()), // a running backward holds the parts, too
        };
        self.backward.try_read(collector(&visit), held).unwrap_or(Ok(()))?;
        let gradients = |known: &Vec<(Pattern, Handle<NodeGradients>)>| {
            known.iter().try_for_each(|(_, gradients)| visit_obj(&visit, gradients.obj()))
        };
        self.known.try_read(collector(&visit), gradients).unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.backward.replace(py, None));
        drop(self.known.replace(py, Vec::new()));
    }
}

impl NodeBackward {
    fn live(&self, py: Python<'_>) -> Res<Rc<Backward>> {
        self.backward.read(py, |backward| backward.clone()).ok_or_else(cleared)
    }

    fn run(&self, this: Obj, ctx: Obj, tangents: Tangents) -> Res<Owned> {
        let py = this.py();
        let backward = self.live(py)?;
        if tangents.len() != backward.n_outputs {
            return Err(type_error(&format!("expected {} gradients, got {}", backward.n_outputs, tangents.len())));
        }
        if backward.is_unusual.is_unusual(py)? {
            return backward.unusual.call(&[this, ctx, Owned::tuple_from(tangents.into_vec())?.get()], None);
        }
        let is_missing = |k: &usize| tangents.get(*k).is_none_or(|tangent| tangent.get().is_none());
        let pattern: Pattern = backward.tangents.iter().map(is_missing).collect();
        if pattern[..] == [true] {
            return Owned::tuple_from(vec![Owned::none(); backward.n_inputs]);
        }
        let gradients = self.gradients(py, &backward, pattern)?;
        gradients.run(ctx, tangents)
    }

    fn gradients(&self, py: Python<'_>, backward: &Backward, pattern: Pattern) -> Res<Handle<NodeGradients>> {
        let known = |known: &Vec<(Pattern, Handle<NodeGradients>)>| {
            known.iter().find(|(other, _)| *other == pattern).map(|(_, gradients)| gradients.clone())
        };
        if let Some(gradients) = self.known.read(py, known) {
            return Ok(gradients);
        }
        let missing = Owned::tuple_from(pattern.iter().map(|missing| Owned::bool(*missing)).collect())?;
        let found = backward.find.call(&[missing.get()], None)?;
        let gradients: Handle<NodeGradients> =
            Handle::downcast(found.get()).ok_or_else(|| runtime_error("`find` gave no NodeGradients"))?;
        self.known.with(py, |known| known.push((pattern, gradients.clone())));
        Ok(gradients)
    }
}

impl Backward {
    fn parse(recipe: Owned) -> Res<Backward> {
        let state = recipe.attr(c"is_unusual")?;
        Ok(Backward {
            is_unusual: Handle::downcast(state.get()).ok_or_else(|| type_error("`is_unusual` is no PlainState"))?,
            unusual: recipe.attr(c"unusual")?,
            find: recipe.attr(c"find")?,
            tangents: items(&recipe, c"tangents", position)?,
            n_inputs: position(recipe.attr(c"n_inputs")?)?,
            n_outputs: position(recipe.attr(c"n_outputs")?)?,
            recipe,
        })
    }
}
