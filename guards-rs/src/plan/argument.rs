//! Arguments of an operator call, as a plan stores them.
//!
//! In: a schema's argument types and the Python values of `ir.plan.Aten`.  Out: `Param`s, each a type and a value.
//! Tensors are slots; sizes may be symbolic.

use std::ffi::CString;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

use super::real;
use super::size::{Size, Symbols};
use crate::ffi::aten::code_of;
use crate::registered_object;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Base {
    Tensor,
    Int,
    Float,
    Bool,
    Scalar,
    Dtype,
    Layout,
    Format,
    Device,
    Str,
    /// Generators, streams and dicts: only Python can pass these.
    Other,
}

/// `Optional[List[Optional[base]]]`; each of the three layers may be absent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Type {
    pub base: Base,
    pub optional: bool,
    pub list: bool,
    pub optional_items: bool,
}

impl Type {
    /// Parses the string of a `torch.JitType`.
    pub fn parse(text: &str) -> Type {
        let (optional, text) = strip(text, "Optional[");
        let (list, text) = strip(text, "List[");
        let (inner, text) = if list { strip(text, "Optional[") } else { (false, text) };
        let base = match text {
            "Tensor" => Base::Tensor,
            "int" | "SymInt" => Base::Int,
            "float" => Base::Float,
            "bool" => Base::Bool,
            "number" => Base::Scalar,
            "ScalarType" => Base::Dtype,
            "Layout" => Base::Layout,
            "MemoryFormat" => Base::Format,
            "Device" => Base::Device,
            "str" => Base::Str,
            _ => Base::Other,
        };
        Type { base, optional, list, optional_items: inner }
    }
}

fn strip<'a>(text: &'a str, layer: &str) -> (bool, &'a str) {
    match text.strip_prefix(layer).and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => (true, inner),
        None => (false, text),
    }
}

#[derive(Debug, Clone)]
pub enum Value {
    None,
    Tensor(usize),
    Int(Size),
    Float(f64),
    /// The float at this position of the environment.
    Real(usize),
    Bool(bool),
    Str(CString),
    /// The C ABI's code of a dtype, layout or memory format.
    Code(i32),
    Device(i32, i32),
    List(Vec<Value>),
    /// The C ABI cannot express the value, or the value does not have the declared type.  The call is made from Python.
    Opaque,
}

#[derive(Debug, Clone)]
pub struct Param {
    pub kind: Type,
    pub value: Value,
}

impl Param {
    /// Collects the slots of the value.
    pub fn slots(&self, out: &mut Vec<usize>) {
        collect_slots(&self.value, out);
    }
}

fn collect_slots(value: &Value, out: &mut Vec<usize>) {
    match value {
        Value::Tensor(slot) => out.push(*slot),
        Value::List(items) => items.iter().for_each(|item| collect_slots(item, out)),
        _ => {}
    }
}

/// Converts Python values.  Holds the classes that it has to recognise.
pub struct Reader<'py> {
    pub symbols: Symbols,
    pub slot_ref: Bound<'py, PyAny>,
    pub expr: Bound<'py, PyAny>,
    real: Bound<'py, PyAny>,
    torch: Bound<'py, PyModule>,
}

impl<'py> Reader<'py> {
    pub fn new(py: Python<'py>, symbols: Symbols) -> PyResult<Reader<'py>> {
        Ok(Reader {
            symbols,
            slot_ref: registered_object::SLOT_REF.bound(py)?,
            expr: registered_object::EXPR.bound(py)?,
            real: registered_object::REAL.bound(py)?,
            torch: py.import("torch")?,
        })
    }

    /// The slot of a `SlotRef`.  None for any other value.
    pub fn slot(&self, value: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if !value.is_instance(&self.slot_ref)? {
            return Ok(None);
        }
        Ok(Some(value.getattr("slot")?.extract()?))
    }

    /// The position of the float that a `Real` names.  None for any other value.
    pub fn float(&self, value: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if !value.is_instance(&self.real)? {
            return Ok(None);
        }
        real::leaf(&self.symbols, value)
    }

    /// The arguments of a call in schema order, with defaults filled in.
    pub fn params(
        &self,
        schema: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: &Bound<'py, PyDict>,
    ) -> PyResult<Vec<Param>> {
        let mut params = Vec::new();
        let mut positional = args.iter();
        let mut keywords = kwargs.len();
        for argument in schema.getattr("arguments")?.try_iter()? {
            let argument = argument?;
            let name = argument.getattr("name")?;
            let keyword_only = argument.getattr("kwarg_only")?.extract::<bool>()?;
            let given = if keyword_only { None } else { positional.next() };
            let value = match given {
                Some(value) => value,
                None => match kwargs.get_item(&name)? {
                    Some(value) => {
                        keywords -= 1;
                        value
                    }
                    None if argument.call_method0("has_default_value")?.extract::<bool>()? => {
                        argument.getattr("default_value")?
                    }
                    None => return Err(PyTypeError::new_err(format!("{schema}: the argument {name} is missing"))),
                },
            };
            let kind = Type::parse(&argument.getattr("real_type")?.str()?.to_cow()?);
            params.push(Param { kind, value: self.read(kind, &value)? });
        }
        if keywords != 0 || positional.next().is_some() {
            return Err(PyTypeError::new_err(format!("{schema}: unknown arguments: {args} {kwargs}")));
        }
        Ok(params)
    }

    fn read(&self, kind: Type, value: &Bound<'py, PyAny>) -> PyResult<Value> {
        if value.is_none() {
            return Ok(if kind.optional { Value::None } else { Value::Opaque });
        }
        if !kind.list {
            return self.read_item(kind.base, value);
        }
        let items: Vec<Bound<'py, PyAny>> = match (value.cast::<PyList>(), value.cast::<PyTuple>()) {
            (Ok(list), _) => list.iter().collect(),
            (_, Ok(tuple)) => tuple.iter().collect(),
            _ => return Ok(Value::Opaque),
        };
        let mut out = Vec::with_capacity(items.len());
        for item in items {
            out.push(match (item.is_none(), kind.optional_items) {
                (true, true) => Value::None,
                (true, false) => Value::Opaque,
                _ => self.read_item(kind.base, &item)?,
            });
        }
        Ok(Value::List(out))
    }

    fn read_item(&self, base: Base, value: &Bound<'py, PyAny>) -> PyResult<Value> {
        if let Some(slot) = self.slot(value)? {
            return Ok(if base == Base::Tensor { Value::Tensor(slot) } else { Value::Opaque });
        }
        if let Some(at) = self.float(value)? {
            return Ok(if matches!(base, Base::Float | Base::Scalar) { Value::Real(at) } else { Value::Opaque });
        }
        let is_bool = value.is_instance_of::<PyBool>();
        let is_int = value.is_instance_of::<PyInt>() || value.is_instance(&self.expr)?;
        let is_float = value.is_instance_of::<PyFloat>();
        let read = match base {
            Base::Bool if is_bool => Some(Value::Bool(value.extract()?)),
            Base::Int | Base::Scalar if is_int && !is_bool => Some(Value::Int(self.symbols.compile(value)?)),
            Base::Scalar if is_bool => Some(Value::Bool(value.extract()?)),
            Base::Float | Base::Scalar if is_float => Some(Value::Float(value.extract()?)),
            Base::Float if is_int && !is_bool => value.extract::<f64>().ok().map(Value::Float),
            Base::Str => value.cast::<PyString>().ok().and_then(|s| CString::new(s.to_string()).ok()).map(Value::Str),
            Base::Dtype => self.code(value, "dtype", "aoti_torch_dtype_")?,
            Base::Layout => self.code(value, "layout", "aoti_torch_layout_")?,
            Base::Format => self.code(value, "memory_format", "aoti_torch_memory_format_")?,
            Base::Device if value.is_instance(&self.torch.getattr("device")?)? => {
                device_code(value)?.map(|(kind, index)| Value::Device(kind, index))
            }
            _ => None,
        };
        Ok(read.unwrap_or(Value::Opaque))
    }

    fn code(&self, value: &Bound<'py, PyAny>, class: &str, prefix: &str) -> PyResult<Option<Value>> {
        if !value.is_instance(&self.torch.getattr(class)?)? {
            return Ok(None);
        }
        Ok(torch_code(value, prefix)?.map(Value::Code))
    }
}

/// The C ABI's code of `torch.float32`, `torch.strided`, ...; the getter is named after the object.
pub fn torch_code(value: &Bound<'_, PyAny>, prefix: &str) -> PyResult<Option<i32>> {
    let text = value.str()?;
    let name = text.to_cow()?;
    Ok(code_of(&format!("{prefix}{}", name.trim_start_matches("torch."))))
}

pub fn device_code(device: &Bound<'_, PyAny>) -> PyResult<Option<(i32, i32)>> {
    let kind = device.getattr("type")?.extract::<String>()?;
    let index = device.getattr("index")?.extract::<Option<i32>>()?;
    let index = index.unwrap_or(if kind == "cpu" { 0 } else { -1 });
    Ok(code_of(&format!("aoti_torch_device_type_{kind}")).map(|code| (code, index)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_schemas() {
        let plain = Type { base: Base::Tensor, optional: false, list: false, optional_items: false };
        assert_eq!(Type::parse("Tensor"), plain);
        assert_eq!(Type::parse("Optional[Tensor]"), Type { optional: true, ..plain });
        assert_eq!(Type::parse("List[Optional[Tensor]]"), Type { list: true, optional_items: true, ..plain });
        assert_eq!(Type::parse("Optional[List[int]]"), Type { base: Base::Int, optional: true, list: true, ..plain });
        assert_eq!(Type::parse("SymInt"), Type { base: Base::Int, ..plain });
        assert_eq!(Type::parse("number"), Type { base: Base::Scalar, ..plain });
        for other in ["Generator", "Dict[str, Tensor]", "List[List[int]]", "Optional[Tensor", ""] {
            assert_eq!(Type::parse(other).base, Base::Other, "{other}");
        }
    }

    #[test]
    fn slots_of_a_value_are_found_in_its_lists() {
        let items = vec![Value::Tensor(3), Value::None, Value::List(vec![Value::Tensor(1)]), Value::Bool(true)];
        let param = Param { kind: Type::parse("List[Optional[Tensor]]"), value: Value::List(items) };
        let mut slots = Vec::new();
        param.slots(&mut slots);
        assert_eq!(slots, [3, 1]);
    }
}
