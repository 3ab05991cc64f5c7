//! `NodeGradients`: runs the backward graph for one set of defined tangents.

use super::{cleared, flag, items, names, optional, position, sequence_of};
use crate::ffi::aten::{Object, UnwrappedTensor};
use crate::ffi::object::{runtime_error, value_error};
use crate::ffi::plan_call::{run_plan_taking, Outputs};
use crate::ffi::shortage::noticed;
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, visit_obj, Obj, Owned, Res};
use crate::plan::size::{Dims, Numbers, Symbols};
use crate::plan::Plan;
use crate::tensor_view::kind_of;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};
use smallvec::SmallVec;
use std::rc::Rc;

/// The arguments of a node's backward: a tangent or None for each output.
pub type Tangents = SmallVec<[Owned; 4]>;

/// A tangent of the backward graph: the argument, the strides that the graph was compiled for, and a function of the
/// tangent and the saved numbers that gives it those strides.
struct Tangent {
    argument: usize,
    strides: Dims,
    fit: Owned,
}

/// The source of the saved tensors.
enum Saved {
    /// The backward takes none, and nothing was freed.
    Nothing,
    /// `ctx.saved_tensors`.
    All,
    /// A `SavedTensors`, called with the node.
    Some(Owned),
}

/// A gradient of an input of the node.
enum Gradient {
    Nothing,
    Result(usize),
    Tangent(usize),
    Saved(usize),
}

/// A check that a tensor was not written since the forward: the position in `ctx.kept`, and a function that raises.
struct Check {
    at: usize,
    fail: Owned,
}

/// See `ir.autograd_node.GradientRecipe`.
struct Gradients {
    recipe: Owned,
    graph: Owned,
    tangents: Box<[Tangent]>,
    from_odd: Owned,
    saved: Saved,
    /// For each saved value whether it is a tensor; others are numbers.
    is_tensor: Box<[bool]>,
    /// Positions in `ctx.numbers` of the symbols of strides.
    symbols: Box<[usize]>,
    checks: Box<[Check]>,
    clears: bool,
    keeps_graph: Option<Owned>,
    /// None: all results of the graph, after `beside` times None.
    gradients: Option<Box<[Gradient]>>,
    beside: usize,
}

/// NodeGradients(recipe): the gradients of a node's inputs, from the node and its tangents.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct NodeGradients(GilCell<Option<Rc<Gradients>>>);

#[pymethods]
impl NodeGradients {
    #[new]
    fn new(py: Python<'_>, recipe: &Bound<'_, PyAny>) -> PyResult<Self> {
        crate::tensor_view::ready(py)?;
        Ok(NodeGradients(GilCell::new(Some(Rc::new(Gradients::parse(py, Obj::of(recipe).own())?)))))
    }

    #[getter]
    fn recipe(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.recipe.clone().into_py(py))
    }

    fn __call__(&self, ctx: &Bound<'_, PyAny>, tangents: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let tangents = Obj::of(tangents).own().to_tuple()?.get().tuple_items().map(Obj::own).collect();
        Ok(noticed(|| self.run(Obj::of(ctx), tangents))?.into_py(ctx.py()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<NodeGradients of {} tangents>", self.live(py)?.tangents.len()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let held = |gradients: &Option<Rc<Gradients>>| match gradients {
            Some(gradients) if Rc::strong_count(gradients) == 1 => gradients.visit(&visit),
            _ => Ok(()), // a running backward holds the parts, too
        };
        self.0.try_read(collector(&visit), held).unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.0.replace(py, None));
    }
}

impl NodeGradients {
    fn live(&self, py: Python<'_>) -> Res<Rc<Gradients>> {
        self.0.read(py, |gradients| gradients.clone()).ok_or_else(cleared)
    }

    pub fn run(&self, ctx: Obj, tangents: Tangents) -> Res<Owned> {
        self.live(ctx.py())?.run(&ctx.own(), tangents)
    }
}

impl Gradients {
    fn parse(py: Python<'_>, recipe: Owned) -> Res<Gradients> {
        let mut known = Symbols::default();
        let symbols = items(&recipe, c"symbols", |pair| {
            known.add(pair.get_index(0)?.get().as_str()?.to_owned(), false);
            position(pair.get_index(1)?)
        })?;
        let tangent = |row: Owned| -> Res<Tangent> {
            let strides = row.attr(c"strides")?.into_bound(py);
            Ok(Tangent {
                argument: position(row.attr(c"argument")?)?,
                strides: known.dims(&strides)?,
                fit: row.attr(c"fit")?,
            })
        };
        let gradient = |pair: Owned| -> Res<Gradient> {
            if pair.get().is_none() {
                return Ok(Gradient::Nothing);
            }
            let at = position(pair.get_index(1)?)?;
            match pair.get_index(0)?.get().as_str()? {
                "result" => Ok(Gradient::Result(at)),
                "tangent" => Ok(Gradient::Tangent(at)),
                "saved" => Ok(Gradient::Saved(at)),
                other => Err(value_error(&format!("unknown gradient {other:?}; known: result, tangent, saved"))),
            }
        };
        let saved = match optional(&recipe, c"saved")? {
            None if flag(&recipe, c"asks")? => Saved::All,
            None => Saved::Nothing,
            Some(saved) => Saved::Some(saved),
        };
        let gradients = match optional(&recipe, c"gradients")? {
            None => None,
            Some(_) => Some(items(&recipe, c"gradients", gradient)?),
        };
        Ok(Gradients {
            graph: recipe.attr(c"graph")?,
            tangents: items(&recipe, c"tangents", tangent)?,
            from_odd: recipe.attr(c"from_odd")?,
            saved,
            is_tensor: items(&recipe, c"is_tensor", |is_tensor| is_tensor.is_true())?,
            symbols,
            checks: items(&recipe, c"checks", |row| {
                Ok(Check { at: position(row.get_index(0)?)?, fail: row.get_index(1)? })
            })?,
            clears: flag(&recipe, c"clears")?,
            keeps_graph: optional(&recipe, c"keeps_graph")?,
            gradients,
            beside: position(recipe.attr(c"beside")?)?,
            recipe,
        })
    }

    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let saved = match &self.saved {
            Saved::Some(saved) => Some(saved),
            _ => None,
        };
        let fits = self.tangents.iter().map(|tangent| &tangent.fit);
        let fails = self.checks.iter().map(|check| &check.fail);
        let always = [&self.recipe, &self.graph, &self.from_odd].into_iter();
        always
            .chain(saved)
            .chain(&self.keeps_graph)
            .chain(fits)
            .chain(fails)
            .try_for_each(|o| visit_obj(visit, o.get()))
    }

    fn run(&self, ctx: &Owned, given: Tangents) -> Res<Owned> {
        let names = names()?;
        let mut tangents = Tangents::new();
        for tangent in &*self.tangents {
            let value = given.get(tangent.argument).ok_or_else(|| runtime_error("a tangent is missing"))?;
            Python::attach(|py| Object::from_bound(&value.get().to_bound(py)).tensor(py).map(drop))?;
            let kind = kind_of(value.get())?;
            if kind > 1 {
                return self.from_odd.call(&[ctx.get(), Owned::tuple_from(given.into_vec())?.get()], None);
            }
            tangents.push(match kind == 0 && self.has_strides(ctx, value.get(), &tangent.strides)? {
                true => value.clone(),
                false => tangent.fit.call(&[value.get(), self.numbers(ctx)?.get()], None)?,
            });
        }
        drop(given); // the graph frees each tangent after its last use
                     // Compiled first: if this fails, the graph keeps its saved tensors.
        let call = self.graph.getattr(names.call.get())?;
        let call = if call.get().is_none() { self.graph.getattr(names.compile.get())?.call(&[], None)? } else { call };
        let saved = self.saved(ctx)?;
        for check in &*self.checks {
            // Errors about freed tensors come first.
            let kept = ctx.getattr(names.kept.get())?.get_index(check.at)?;
            let (counter, expected) = (kept.get_index(0)?, kept.get_index(1)?);
            if counter.getattr(names._version.get())?.as_i64()? != expected.as_i64()? {
                check.fail.call(&[counter.get(), expected.get()], None)?;
            }
        }
        if self.clears {
            ctx.getattr(names.maybe_clear_saved_tensors.get())?.call(&[], None)?;
        }
        if let Some(keeps_graph) = &self.keeps_graph {
            if !keeps_graph.call(&[], None)?.is_true()? {
                ctx.set_attr(names.watched.get(), Owned::tuple(&[])?.get())?;
            }
        }
        let passed_on: SmallVec<[Option<Owned>; 8]> = match &self.gradients {
            None => SmallVec::new(),
            Some(gradients) => gradients
                .iter()
                .map(|gradient| match gradient {
                    Gradient::Tangent(k) => tangents.get(*k).cloned(),
                    Gradient::Saved(k) => saved.get(*k).cloned(),
                    _ => None,
                })
                .collect(),
        };
        let results = match run_plan_taking::<Plan>(call.get(), saved.into_iter().chain(tangents).collect()) {
            Ok(results) => results?,
            Err(inputs) => {
                let inputs = Owned::list_from(inputs.into_vec())?;
                sequence_of(call.call(&[inputs.get()], None)?)?
            }
        };
        let beside = std::iter::repeat_with(Owned::none).take(self.beside);
        let Some(gradients) = &self.gradients else {
            return Owned::tuple_from(beside.chain(results).collect());
        };
        let gradient = |(gradient, passed): (&Gradient, Option<Owned>)| match (gradient, passed) {
            (Gradient::Nothing, _) => Ok(Owned::none()),
            (Gradient::Result(k), _) => {
                results.get(*k).cloned().ok_or_else(|| runtime_error("the backward graph gave too few gradients"))
            }
            (_, passed) => passed.ok_or_else(|| runtime_error("a gradient that is passed on is missing")),
        };
        let given = gradients.iter().zip(passed_on).map(gradient);
        Owned::tuple_from(beside.map(Ok).chain(given).collect::<Res<Vec<_>>>()?)
    }

    /// The saved values in the order of the graph's inputs.
    fn saved(&self, ctx: &Owned) -> Res<Outputs> {
        let tensors = match &self.saved {
            Saved::Nothing => Outputs::new(),
            Saved::All => sequence_of(ctx.getattr(names()?.saved_tensors.get())?)?,
            Saved::Some(saved) => sequence_of(saved.call(&[ctx.get()], None)?)?,
        };
        if self.is_tensor.iter().all(|is_tensor| *is_tensor) {
            return Ok(tensors);
        }
        let (mut tensors, mut numbers) = (tensors.into_iter(), sequence_of(self.numbers(ctx)?)?.into_iter());
        let next = |is_tensor: &bool| {
            let found = if *is_tensor { tensors.next() } else { numbers.next() };
            found.ok_or_else(|| runtime_error("the forward saved fewer values than the backward takes"))
        };
        self.is_tensor.iter().map(next).collect()
    }

    /// The numbers that the forward saved.
    fn numbers(&self, ctx: &Owned) -> Res<Owned> {
        match self.symbols.is_empty() && self.is_tensor.iter().all(|is_tensor| *is_tensor) {
            true => Owned::tuple(&[]),
            false => ctx.getattr(names()?.numbers.get()),
        }
    }

    fn has_strides(&self, ctx: &Owned, value: Obj, strides: &Dims) -> Res<bool> {
        let mut env: Numbers = SmallVec::new();
        if strides.as_static().is_none() {
            let numbers = self.numbers(ctx)?;
            for k in &*self.symbols {
                env.push(numbers.get_index(*k)?.as_i64()?);
            }
        }
        let mut room = Numbers::new();
        let known = strides.resolve(&env, &mut room).map_err(|failure| runtime_error(&failure.0))?;
        Python::attach(|py| {
            let value = value.to_bound(py);
            Ok(match Object::from_bound(&value).tensor(py)? {
                UnwrappedTensor::Borrowed(handle) => handle.strides_are(known),
                UnwrappedTensor::Owned(tensor) => tensor.handle().strides_are(known),
            })
        })
    }
}
