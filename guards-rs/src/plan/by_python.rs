//! Calls an operator from Python.  Used when the C ABI cannot express the call, and to raise eager's exceptions.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::argument::Reader;
use super::aten::Results;
use super::size::Size;
use super::Frame;
use crate::ffi::aten::{Object, UnwrappedTensor};
use crate::ffi::{Obj, Owned};

/// A Python value with holes for tensors and sizes.
enum Template {
    Const(Py<PyAny>),
    Slot(usize),
    Size(Size),
    Float(usize),
    List(Vec<Template>),
    Tuple(Vec<Template>),
}

pub struct PyCall {
    op: Py<PyAny>,
    args: Vec<Template>,
    kwargs: Vec<(Py<PyAny>, Template)>,
    /// Whether the schema names results.  If not, the returned None is no result.
    returns: bool,
}

impl PyCall {
    pub fn build(
        reader: &Reader<'_>,
        op: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: &Bound<'_, PyDict>,
        returns: bool,
    ) -> PyResult<PyCall> {
        let args = args.iter().map(|v| Template::build(reader, &v)).collect::<PyResult<_>>()?;
        let kwargs =
            kwargs.iter().map(|(k, v)| Ok((k.unbind(), Template::build(reader, &v)?))).collect::<PyResult<_>>()?;
        // OpOverload.__call__ calls `_op`; a direct call of `_op` saves a Python frame.
        let op = op.getattr_opt("_op")?.unwrap_or_else(|| op.clone());
        Ok(PyCall { op: op.unbind(), args, kwargs, returns })
    }

    pub fn slots(&self, out: &mut Vec<usize>) {
        self.args.iter().for_each(|t| t.slots(out));
        self.kwargs.iter().for_each(|(_, t)| t.slots(out));
    }

    pub fn call(&self, py: Python<'_>, frame: &Frame<'_, '_>) -> PyResult<Results> {
        let args = self.args.iter().map(|t| t.fill(py, frame)).collect::<PyResult<Vec<_>>>()?;
        let kwargs = Owned::dict()?;
        for (name, template) in &self.kwargs {
            kwargs.dict_set(Obj::of(name.bind(py)), template.fill(py, frame)?.get())?;
        }
        let op = Obj::of(self.op.bind(py)).own();
        let result = op.call_dict(Owned::tuple_from(args)?.get(), Some(kwargs.get()))?.into_bound(py);
        let mut out = Vec::new();
        if self.returns {
            flatten(py, &result, &mut out)?;
        }
        Ok(out)
    }
}

/// The tensors of a result in order, from nested lists and tuples.  Other objects count as None.
fn flatten(py: Python<'_>, result: &Bound<'_, PyAny>, out: &mut Results) -> PyResult<()> {
    if result.is_instance_of::<PyTuple>() || result.is_instance_of::<PyList>() {
        for item in result.try_iter()? {
            flatten(py, &item?, out)?;
        }
        return Ok(());
    }
    let tensor = match Object::from_bound(result).tensor(py) {
        Ok(UnwrappedTensor::Borrowed(handle)) => Some(handle.to_owned()?),
        Ok(UnwrappedTensor::Owned(tensor)) => Some(tensor),
        Err(_) => None,
    };
    out.push(tensor);
    Ok(())
}

impl Template {
    pub fn build(reader: &Reader<'_>, value: &Bound<'_, PyAny>) -> PyResult<Template> {
        if let Some(slot) = reader.slot(value)? {
            return Ok(Template::Slot(slot));
        }
        if let Some(at) = reader.float(value)? {
            return Ok(Template::Float(at));
        }
        if value.is_instance(&reader.expr)? {
            return Ok(Template::Size(reader.symbols.compile(value)?));
        }
        if let Ok(list) = value.cast::<PyList>() {
            return Ok(Template::List(list.iter().map(|v| Template::build(reader, &v)).collect::<PyResult<_>>()?));
        }
        if let Ok(tuple) = value.cast_exact::<PyTuple>() {
            return Ok(Template::Tuple(tuple.iter().map(|v| Template::build(reader, &v)).collect::<PyResult<_>>()?));
        }
        Ok(Template::Const(value.clone().unbind()))
    }

    pub fn slots(&self, out: &mut Vec<usize>) {
        match self {
            Template::Slot(slot) => out.push(*slot),
            Template::List(items) | Template::Tuple(items) => items.iter().for_each(|t| t.slots(out)),
            Template::Const(_) | Template::Size(_) | Template::Float(_) => {}
        }
    }

    fn fill(&self, py: Python<'_>, frame: &Frame<'_, '_>) -> PyResult<Owned> {
        let all = |items: &[Template]| items.iter().map(|t| t.fill(py, frame)).collect::<PyResult<Vec<_>>>();
        Ok(match self {
            Template::Const(value) => Obj::of(value.bind(py)).own(),
            Template::Slot(slot) => Owned::of_py(frame.object(py, *slot)?.unbind()),
            Template::Size(size) => Owned::int(size.eval(frame.env)?)?,
            Template::Float(at) => Owned::float(f64::from_bits(frame.env[*at] as u64))?,
            Template::List(items) => Owned::list_from(all(items)?)?,
            Template::Tuple(items) => Owned::tuple_from(all(items)?)?,
        })
    }
}
