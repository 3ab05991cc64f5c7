//! Calls an operator through the dispatcher, with arguments encoded by the schema.

use std::ffi::CString;

use pyo3::prelude::*;

use super::argument::{Base, Param, Type, Value};
use super::aten::{Results, Returns};
use super::Frame;
use crate::ffi::aten::{self as torch, Failure, Outcome, Stack};

pub struct StackCall {
    name: CString,
    overload: CString,
    list_result: bool,
    n_results: usize,
}

impl StackCall {
    pub fn build(schema: &Bound<'_, PyAny>, params: &[Param], returns: &Returns) -> PyResult<Option<StackCall>> {
        let (list_result, n_results) = match returns {
            Returns::Tensors(n) => (false, *n),
            Returns::TensorList if torch::has_lists() => (true, 1),
            _ => return Ok(None),
        };
        if !torch::has_dispatcher() || !params.iter().all(|p| encodable(p.kind, &p.value)) {
            return Ok(None);
        }
        let name = CString::new(schema.getattr("name")?.extract::<String>()?)?;
        let overload = CString::new(schema.getattr("overload_name")?.extract::<String>()?)?;
        Ok(Some(StackCall { name, overload, list_result, n_results }))
    }

    pub fn call(&self, params: &[Param], frame: &Frame<'_, '_>) -> Outcome<Results> {
        // Only the operator frees encoded arguments.  So everything that can fail is evaluated before the encoding.
        params.iter().try_for_each(|param| ready(&param.value, frame))?;
        let mut stack = Stack::with_capacity(params.len().max(self.n_results));
        for param in params {
            stack.push(encode(param.kind, &param.value, frame)?);
        }
        let results = stack.call(&self.name, &self.overload, self.n_results)?;
        if self.list_result {
            return torch::decode_tensor_list(results[0]);
        }
        Ok(results.into_iter().map(|word| torch::adopt(word as usize)).collect())
    }
}

/// Fails if the value cannot be encoded now.
fn ready(value: &Value, frame: &Frame<'_, '_>) -> Outcome<()> {
    match value {
        Value::Tensor(slot) => frame.handle(*slot).map(drop),
        Value::Int(size) if size.as_const().is_none() => size.eval(frame.env).map(drop),
        Value::List(items) => items.iter().try_for_each(|item| ready(item, frame)),
        _ => Ok(()),
    }
}

fn encodable(kind: Type, value: &Value) -> bool {
    match value {
        Value::None => true,
        Value::List(items) => {
            let item = Type { list: false, optional: kind.optional_items, optional_items: false, ..kind };
            torch::has_lists() && items.iter().all(|v| encodable(item, v))
        }
        Value::Str(_) => torch::has_strings(),
        Value::Opaque => false,
        _ => kind.base != Base::Scalar,
    }
}

fn encode(kind: Type, value: &Value, frame: &Frame<'_, '_>) -> Outcome<u64> {
    if kind.optional {
        return match value {
            Value::None => Ok(0),
            _ => torch::encode_some(encode(Type { optional: false, ..kind }, value, frame)?),
        };
    }
    match value {
        Value::Tensor(slot) => torch::encode_tensor(frame.handle(*slot)?),
        Value::Int(size) => Ok(size.eval(frame.env)? as u64),
        Value::Float(v) => Ok(v.to_bits()),
        Value::Real(at) => Ok(frame.env[*at] as u64),
        Value::Bool(v) => Ok(u64::from(*v)),
        Value::Code(v) => Ok(*v as u32 as u64),
        Value::Device(kind, index) => Ok((*kind as u32 as u64) << 32 | *index as u32 as u64),
        Value::Str(text) => torch::encode_string(text),
        Value::List(items) => {
            let item = Type { list: false, optional: kind.optional_items, optional_items: false, ..kind };
            torch::encode_list(items.iter().map(|v| encode(item, v, frame)))
        }
        Value::None | Value::Opaque => Err(Failure("an argument that cannot be encoded".into())),
    }
}
