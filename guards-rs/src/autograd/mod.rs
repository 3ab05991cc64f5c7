//! The autograd node of a compiled graph: what a call and its backward do beside the two graphs.
//!
//! In: recipes (`ir.autograd_node`), which say what is saved, checked and passed on.  Out: three callables.  Torch calls
//! `NodeForward` and `NodeBackward` as the functions of a `torch.autograd.Function`, without Python code in between.
//! `NodeGradients` runs the backward graph for one set of defined tangents.
//!
//! Reading order: `forward.rs`, `backward.rs`, `gradients.rs`.

mod backward;
mod forward;
mod gradients;

use crate::ffi::object::{runtime_error, value_error, Immortal, Obj, Owned, Raised, Res};
use crate::ffi::plan_call::Outputs;
use pyo3::prelude::*;
use std::sync::OnceLock;

macro_rules! names {
    ($($name:ident)*) => {
        /// Interned names of the attributes that these callables read and write.
        struct Names { $($name: Immortal,)* }

        impl Names {
            fn new() -> Res<Names> {
                Ok(Names { $($name: Immortal::new(Owned::interned(stringify!($name))?),)* })
            }
        }
    };
}

names! {
    _version call compile data detach ends kept made materialize_grads maybe_clear_saved_tensors non_differentiable
    numbers rng saved_tensors to_save versions watched
}

fn names() -> Res<&'static Names> {
    static NAMES: OnceLock<Names> = OnceLock::new();
    match NAMES.get() {
        Some(names) => Ok(names),
        None => {
            let _ = NAMES.set(Names::new()?);
            NAMES.get().ok_or(Raised)
        }
    }
}

/// A value of the forward graph: the position of one of its inputs, or of one of its outputs.
#[derive(Clone, Copy)]
enum Place {
    Input(usize),
    Output(usize),
}

impl Place {
    /// From `("input", i)` or `("output", k)`.
    fn parse(pair: &Owned) -> Res<Place> {
        let at = pair.get_index(1)?.as_i64()? as usize;
        match pair.get_index(0)?.get().as_str()? {
            "input" => Ok(Place::Input(at)),
            "output" => Ok(Place::Output(at)),
            other => Err(value_error(&format!("unknown place {other:?}; known: input, output"))),
        }
    }

    fn of(self, inputs: &[Obj], outputs: &[Obj]) -> Res<Owned> {
        let found = match self {
            Place::Input(i) => inputs.get(i),
            Place::Output(k) => outputs.get(k),
        };
        found.map(|o| o.own()).ok_or_else(|| runtime_error("the forward graph has fewer inputs or outputs than saved"))
    }
}

/// The items of a graph's result, or of another sequence.
fn sequence_of(made: Owned) -> Res<Outputs> {
    let made = if made.get().is_tuple() { made } else { made.to_tuple()? };
    Ok(made.get().tuple_items().map(Obj::own).collect())
}

/// The items of an attribute that is a sequence.
fn items<T>(recipe: &Owned, name: &std::ffi::CStr, parse: impl FnMut(Owned) -> Res<T>) -> Res<Box<[T]>> {
    recipe.attr(name)?.to_tuple()?.get().tuple_items().map(Obj::own).map(parse).collect()
}

/// An attribute that may be None.
fn optional(recipe: &Owned, name: &std::ffi::CStr) -> Res<Option<Owned>> {
    let found = recipe.attr(name)?;
    Ok((!found.get().is_none()).then_some(found))
}

fn flag(recipe: &Owned, name: &std::ffi::CStr) -> Res<bool> {
    recipe.attr(name)?.is_true()
}

fn position(value: Owned) -> Res<usize> {
    Ok(value.as_i64()? as usize)
}

/// The error of a callable that the garbage collector has cleared.
fn cleared() -> Raised {
    runtime_error("this autograd node was cleared by the garbage collector")
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<forward::NodeForward>()?;
    m.add_class::<backward::NodeBackward>()?;
    m.add_class::<gradients::NodeGradients>()
}
