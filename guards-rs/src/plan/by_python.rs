//! Calling an operator from Python: what the C ABI cannot express, and the source of eager's exceptions.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::argument::Reader;
use super::aten::Results;
use super::size::Size;
use super::Frame;
use crate::ffi::aten::{Object, Unwrapped};

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
    /// Whether the schema names results: the None of one that names none is no result.
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
        // what OpOverload.__call__ calls, without its Python frame
        let op = op.getattr_opt("_op")?.unwrap_or_else(|| op.clone());
        Ok(PyCall { op: op.unbind(), args, kwargs, returns })
    }

    pub fn slots(&self, out: &mut Vec<usize>) {
        self.args.iter().for_each(|t| t.slots(out));
        self.kwargs.iter().for_each(|(_, t)| t.slots(out));
    }

    pub fn call(&self, py: Python<'_>, frame: &Frame<'_, '_>) -> PyResult<Results> {
        let args = self.args.iter().map(|t| t.fill(py, frame)).collect::<PyResult<Vec<_>>>()?;
        let kwargs = PyDict::new(py);
        for (name, template) in &self.kwargs {
            kwargs.set_item(name, template.fill(py, frame)?)?;
        }
        let result = self.op.bind(py).call(PyTuple::new(py, args)?, Some(&kwargs))?;
        let mut out = Vec::new();
        if self.returns {
            flatten(py, &result, &mut out)?;
        }
        Ok(out)
    }
}

/// Tensors of a result in order, lists and tuples opened; what is no tensor counts as None.
fn flatten(py: Python<'_>, result: &Bound<'_, PyAny>, out: &mut Results) -> PyResult<()> {
    if result.is_instance_of::<PyTuple>() || result.is_instance_of::<PyList>() {
        for item in result.try_iter()? {
            flatten(py, &item?, out)?;
        }
        return Ok(());
    }
    let tensor = match Object::from_bound(result).tensor(py) {
        Ok(Unwrapped::Borrowed(handle)) => Some(handle.to_owned()?),
        Ok(Unwrapped::Owned(tensor)) => Some(tensor),
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

    fn fill<'py>(&self, py: Python<'py>, frame: &Frame<'_, '_>) -> PyResult<Bound<'py, PyAny>> {
        let all = |items: &[Template]| items.iter().map(|t| t.fill(py, frame)).collect::<PyResult<Vec<_>>>();
        match self {
            Template::Const(value) => Ok(value.bind(py).clone()),
            Template::Slot(slot) => frame.object(py, *slot),
            Template::Size(size) => Ok(size.eval(frame.env)?.into_pyobject(py)?.into_any()),
            Template::Float(at) => Ok(f64::from_bits(frame.env[*at] as u64).into_pyobject(py)?.into_any()),
            Template::List(items) => Ok(PyList::new(py, all(items)?)?.into_any()),
            Template::Tuple(items) => Ok(PyTuple::new(py, all(items)?)?.into_any()),
        }
    }
}
