//! `NodeForward`: runs the forward graph and saves on the autograd node what its backward needs.

use super::{cleared, flag, items, names, optional, position, sequence_of, Place};
use crate::ffi::object::type_error;
use crate::ffi::plan_call::run_plan;
use crate::ffi::shortage::noticed;
use crate::ffi::sync::GilCell;
use crate::ffi::{collector, visit_obj, Obj, Owned, Res};
use crate::plan::Plan;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use pyo3::{PyTraverseError, PyVisit};
use smallvec::SmallVec;
use std::rc::Rc;

/// An input of which the node keeps a reference, weak unless `held`, and its version if it has one.
struct Watched {
    input: usize,
    held: bool,
    has_version: bool,
}

/// See `ir.autograd_node.ForwardRecipe`.
struct Forward {
    recipe: Owned,
    graph: Owned,
    alone: bool,
    states: Option<Owned>,
    writes: Option<Owned>,
    tensors: Box<[Place]>,
    numbers: Box<[Place]>,
    versions: Box<[usize]>,
    takes_apart: bool,
    watched: Box<[Watched]>,
    made: Box<[usize]>,
    kept: Box<[(Place, i64)]>,
    empty: Owned,
    fixed: Box<[usize]>,
    ends: bool,
    /// The outputs that are the Function's results, and whether each is detached from its own history.
    results: Box<[(usize, bool)]>,
    holder: Owned,
}

/// NodeForward(recipe): the `forward` of an autograd Function.  Called with the node, then the inputs of the graph; if
/// the node is not alone, with the node, inputs and outputs of the graph, saved states, and ends of gradients.
#[pyclass(frozen, weakref, module = "pycompiler._native")]
pub struct NodeForward(GilCell<Option<Rc<Forward>>>);

#[pymethods]
impl NodeForward {
    #[new]
    fn new(recipe: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(NodeForward(GilCell::new(Some(Rc::new(Forward::parse(Obj::of(recipe).own())?)))))
    }

    #[getter]
    fn recipe(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.live(py)?.recipe.clone().into_py(py))
    }

    #[pyo3(signature = (*args))]
    fn __call__(&self, py: Python<'_>, args: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        Ok(noticed(|| self.live(py)?.run(Obj::of(args)))?.into_py(py))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<NodeForward of {}>", self.live(py)?.graph.repr()))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let held = |forward: &Option<Rc<Forward>>| match forward {
            Some(forward) if Rc::strong_count(forward) == 1 => {
                let always = [&forward.recipe, &forward.graph, &forward.empty, &forward.holder];
                let others = forward.states.iter().chain(&forward.writes);
                always.into_iter().chain(others).try_for_each(|o| visit_obj(&visit, o.get()))
            }
            _ => Ok(()), // a running call holds the parts, too
        };
        self.0.try_read(collector(&visit), held).unwrap_or(Ok(()))
    }

    fn __clear__(&self, py: Python<'_>) {
        drop(self.0.replace(py, None));
    }
}

impl NodeForward {
    fn live(&self, py: Python<'_>) -> Res<Rc<Forward>> {
        self.0.read(py, |forward| forward.clone()).ok_or_else(cleared)
    }
}

impl Forward {
    fn parse(recipe: Owned) -> Res<Forward> {
        let watched = |row: Owned| -> Res<Watched> {
            Ok(Watched {
                input: position(row.get_index(0)?)?,
                held: row.get_index(1)?.is_true()?,
                has_version: row.get_index(2)?.is_true()?,
            })
        };
        Ok(Forward {
            graph: recipe.attr(c"graph")?,
            alone: flag(&recipe, c"alone")?,
            states: optional(&recipe, c"states")?,
            writes: optional(&recipe, c"writes")?,
            tensors: items(&recipe, c"tensors", |pair| Place::parse(&pair))?,
            numbers: items(&recipe, c"numbers", |pair| Place::parse(&pair))?,
            versions: items(&recipe, c"versions", position)?,
            takes_apart: flag(&recipe, c"takes_apart")?,
            watched: items(&recipe, c"watched", watched)?,
            made: items(&recipe, c"made", position)?,
            kept: items(&recipe, c"kept", |row| Ok((Place::parse(&row.get_index(0)?)?, row.get_index(1)?.as_i64()?)))?,
            empty: recipe.attr(c"empty")?,
            fixed: items(&recipe, c"fixed", position)?,
            ends: flag(&recipe, c"ends")?,
            results: items(&recipe, c"results", |row| {
                Ok((position(row.get_index(0)?)?, row.get_index(1)?.is_true()?))
            })?,
            holder: recipe.attr(c"holder")?,
            recipe,
        })
    }

    fn run(&self, args: Obj) -> Res<Owned> {
        let args: SmallVec<[Obj; 16]> = args.tuple_items().collect();
        match args.split_first() {
            Some((ctx, inputs)) if self.alone => self.run_graph(&ctx.own(), inputs),
            Some((ctx, [inputs, outputs, rng, ends, ..])) => {
                let (ctx, inputs, outputs) = (ctx.own(), inputs.own().to_tuple()?, outputs.own().to_tuple()?);
                if self.states.is_some() {
                    ctx.set_attr(names()?.rng.get(), *rng)?;
                }
                let inputs: SmallVec<[Obj; 16]> = inputs.get().tuple_items().collect();
                let outputs: SmallVec<[Obj; 8]> = outputs.get().tuple_items().collect();
                self.save(&ctx, &inputs, &outputs)?;
                if self.ends {
                    ctx.set_attr(names()?.ends.get(), *ends)?;
                }
                self.results(&outputs)
            }
            _ => Err(type_error("an autograd node takes itself, then the inputs of its graph")),
        }
    }

    fn run_graph(&self, ctx: &Owned, inputs: &[Obj]) -> Res<Owned> {
        if let Some(states) = &self.states {
            let found = states.call(&[Owned::tuple(inputs)?.get()], None)?;
            ctx.set_attr(names()?.rng.get(), found.get())?;
        }
        let made = match run_plan::<Plan>(self.graph.get(), inputs) {
            Some(made) => made?,
            None => sequence_of(self.graph.call(inputs, None)?)?,
        };
        let outputs: SmallVec<[Obj; 8]> = made.iter().map(Owned::get).collect();
        if let Some(writes) = &self.writes {
            writes.call(&[Owned::tuple(inputs)?.get(), Owned::tuple(&outputs)?.get()], None)?;
        }
        self.save(ctx, inputs, &outputs)?;
        self.results(&outputs)
    }

    fn save(&self, ctx: &Owned, inputs: &[Obj], outputs: &[Obj]) -> Res<()> {
        let names = names()?;
        let tuple = |places: &[Place]| {
            Owned::tuple_from(places.iter().map(|place| place.of(inputs, outputs)).collect::<Res<Vec<_>>>()?)
        };
        if !self.tensors.is_empty() {
            ctx.set_attr(names.to_save.get(), tuple(&self.tensors)?.get())?;
        }
        if !self.numbers.is_empty() {
            ctx.set_attr(names.numbers.get(), tuple(&self.numbers)?.get())?;
        }
        let version_of = |value: &Owned| value.getattr(names._version.get());
        if self.takes_apart {
            let input = |i: &usize| version_of(&Place::Input(*i).of(inputs, outputs)?);
            let versions = self.versions.iter().map(input).collect::<Res<Vec<_>>>()?;
            ctx.set_attr(names.versions.get(), Owned::tuple_from(versions)?.get())?;
        }
        if !self.watched.is_empty() {
            let watch = |watched: &Watched| -> Res<Owned> {
                let value = Place::Input(watched.input).of(inputs, outputs)?;
                let version = if watched.has_version { version_of(&value)? } else { Owned::none() };
                let reference = match watched.held {
                    true => self.holder.call(&[value.get()], None)?,
                    false => value.weak_reference()?,
                };
                Owned::tuple_from(vec![reference, version])
            };
            let watched = self.watched.iter().map(watch).collect::<Res<Vec<_>>>()?;
            ctx.set_attr(names.watched.get(), Owned::tuple_from(watched)?.get())?;
        }
        if !self.made.is_empty() {
            let made = Owned::dict()?;
            for k in &*self.made {
                let reference = Place::Output(*k).of(inputs, outputs)?.weak_reference()?;
                made.dict_set(Owned::int(*k as i64)?.get(), reference.get())?;
            }
            ctx.set_attr(names.made.get(), made.get())?;
        }
        if !self.kept.is_empty() {
            let count = |(place, writes): &(Place, i64)| -> Res<Owned> {
                let value = place.of(inputs, outputs)?;
                let counter = value.getattr(names.detach.get())?.call(&[], None)?;
                counter.set_attr(names.data.get(), self.empty.get())?;
                let expected = version_of(&value)?.as_i64()? + writes;
                Owned::tuple_from(vec![counter, Owned::int(expected)?])
            };
            let kept = self.kept.iter().map(count).collect::<Res<Vec<_>>>()?;
            ctx.set_attr(names.kept.get(), Owned::tuple_from(kept)?.get())?;
        }
        if !self.fixed.is_empty() {
            let fixed: Box<[Place]> = self.fixed.iter().map(|k| Place::Output(*k)).collect();
            ctx.set_attr(names.non_differentiable.get(), tuple(&fixed)?.get())?;
        }
        ctx.set_attr(names.materialize_grads.get(), Owned::bool(false).get())
    }

    fn results(&self, outputs: &[Obj]) -> Res<Owned> {
        let result = |(k, is_detached): &(usize, bool)| {
            let made = Place::Output(*k).of(&[], outputs)?;
            if *is_detached {
                return made.getattr(names()?.detach.get())?.call(&[], None);
            }
            Ok(made)
        };
        Owned::tuple_from(self.results.iter().map(result).collect::<Res<Vec<_>>>()?)
    }
}
