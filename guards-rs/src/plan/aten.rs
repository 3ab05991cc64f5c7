//! A call of an ATen operator: three ways to make it, the fastest that fits.
//!
//! In: an `ir.plan.Aten`.  Out: `Aten`, whose `call` fills the result slots.  In order of preference:
//! 1. `shim`: a function of the C ABI for this very operator (`shims.rs`);
//! 2. `stack`: the dispatcher, arguments encoded by the schema;
//! 3. `python`: the OpOverload itself, with the GIL.
//!
//! A native way that fails is repeated from Python: that raises the exception that eager raises.  Should Python
//! succeed, its result stands and the step stays on that way.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::argument::{Base, Param, Reader, Type, Value};
use super::shims::{self, Form};
use super::size::Size;
use super::Frame;
use crate::ffi::aten::{self as torch, BelowAutograd, Device, Failure, Handle, Object, Outcome, Shim, Stack, Tensor, Unwrapped};

pub struct Aten {
    pub name: String,
    params: Vec<Param>,
    pub out: Vec<Option<usize>>,
    shim: Option<ShimCall>,
    stack: Option<StackCall>,
    python: PyCall,
    only_python: AtomicBool,
    mutates: bool,
    /// Slots of tensor arguments.
    pub reads: Vec<usize>,
}

type Results = Vec<Option<Tensor>>;

/// Operators that the dispatcher's C ABI turned out not to call, though their arguments can be encoded (kernels that take
/// `int[]` where the schema says `SymInt[]`): found by the first failure, for all later plans.
fn refused() -> MutexGuard<'static, BTreeSet<String>> {
    static REFUSED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    REFUSED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Aten {
    pub fn build(reader: &Reader<'_>, step: &Bound<'_, PyAny>) -> PyResult<Aten> {
        let op = step.getattr("op")?;
        let args = step.getattr("args")?.cast_into::<PyTuple>()?;
        let kwargs = step.getattr("kwargs")?.cast_into::<PyDict>()?;
        let schema = op.getattr("_schema")?;
        let params = reader.params(&schema, &args, &kwargs)?;
        let out: Vec<Option<usize>> = step.getattr("out")?.extract()?;
        let python = PyCall::build(reader, &op, &args, &kwargs)?;
        let mut reads = Vec::new();
        python.slots(&mut reads);
        let returns = returns(&schema)?;
        let shim = ShimCall::build(&schema.str()?.to_cow()?, &params, out.len());
        let name = op.str()?.to_string();
        let stack = if refused().contains(&name) { None } else { StackCall::build(&schema, &params, &returns)? };
        if matches!(returns, Returns::Tensors(n) if n != out.len()) {
            return Err(PyValueError::new_err(format!("{schema}: the plan names {} results", out.len())));
        }
        let only_python = AtomicBool::new(false);
        let mutates = schema.getattr("is_mutable")?.extract()?;
        Ok(Aten { name, mutates, params, out, shim, stack, python, only_python, reads })
    }

    pub fn route(&self) -> &'static str {
        match (self.only_python.load(Ordering::Relaxed), &self.shim, &self.stack) {
            (false, Some(_), _) => "shim",
            (false, None, Some(_)) => "dispatcher",
            _ => "python",
        }
    }

    /// Calls the operator.  The GIL is released when there is much to read, and held again for Python.
    pub fn call(&self, frame: &mut Frame<'_, '_>) -> PyResult<()> {
        let _below = BelowAutograd::enter(self.mutates);
        if !self.only_python.load(Ordering::Relaxed) {
            match self.native(frame) {
                Some(Ok(results)) => return self.store(frame, results),
                Some(Err(failure)) => return self.again(frame, &failure),
                None => {}
            }
        }
        self.call_python(frame)
    }

    /// Registered with PyO3 for the time of the call: errors and objects may be dropped in it.
    fn call_python(&self, frame: &mut Frame<'_, '_>) -> PyResult<()> {
        frame.gil.acquire();
        let ending = || Failure("the interpreter is shutting down".into());
        let results = Python::try_attach(|py| self.python.call(py, frame)).ok_or_else(ending)??;
        self.store(frame, results)
    }

    fn native(&self, frame: &mut Frame<'_, '_>) -> Option<Outcome<Results>> {
        if self.shim.is_none() && self.stack.is_none() {
            return None;
        }
        let elements: i64 = self.reads.iter().filter_map(|&slot| frame.handle(slot).ok()).map(Handle::numel).sum();
        frame.release_gil_for(elements as u64);
        if let Some(shim) = &self.shim {
            if shim.on_cpu(frame) {
                return Some(shim.call(frame));
            }
        }
        self.stack.as_ref().map(|stack| stack.call(&self.params, frame))
    }

    #[cold]
    fn again(&self, frame: &mut Frame<'_, '_>, failure: &Failure) -> PyResult<()> {
        self.call_python(frame)?;
        self.only_python.store(true, Ordering::Relaxed);
        refused().insert(self.name.clone());
        let text = format!("{}: called from Python from now on, for the native call failed: {}", self.name, failure.0);
        let py = frame.gil.acquire();
        let log = py.import("logging")?.call_method1("getLogger", ("pycompiler.plan",))?;
        log.call_method1("info", (text,))?;
        Ok(())
    }

    fn store(&self, frame: &mut Frame<'_, '_>, results: Results) -> PyResult<()> {
        if results.len() != self.out.len() {
            let text = format!("{} gave {} results, the plan names {}", self.name, results.len(), self.out.len());
            return Err(PyValueError::new_err(text));
        }
        for (slot, tensor) in self.out.iter().zip(results) {
            if let (Some(slot), Some(tensor)) = (slot, tensor) {
                frame.fill(*slot, tensor)?;
            }
        }
        Ok(())
    }
}

enum Returns {
    Tensors(usize),
    TensorList,
    Mixed,
}

fn returns(schema: &Bound<'_, PyAny>) -> PyResult<Returns> {
    let mut kinds = Vec::new();
    for result in schema.getattr("returns")?.try_iter()? {
        kinds.push(Type::parse(&result?.getattr("real_type")?.str()?.to_cow()?));
    }
    let plain = |t: &Type| t.base == Base::Tensor && !t.optional && !t.list;
    if kinds.iter().all(plain) {
        return Ok(Returns::Tensors(kinds.len()));
    }
    let list = |t: &Type| t.base == Base::Tensor && t.list && !t.optional && !t.optional_items;
    Ok(if kinds.len() == 1 && list(&kinds[0]) { Returns::TensorList } else { Returns::Mixed })
}

// -- 1. functions of the C ABI ----------------------------------------------------------------------------------------

/// What to write into an argument word at call time.
enum Patch {
    Handle(usize),
    /// The address of a cell that holds the handle.
    Cell(usize),
    /// The address of an array of handles.
    Handles(Vec<usize>),
    /// The address of an array of addresses of handles, null for None.
    Cells(Vec<Option<usize>>),
}

const CELLS: usize = 64;
const RESULTS: usize = 8;

struct ShimCall {
    shim: Shim,
    form: Form,
    words: Vec<usize>,
    floats: Vec<f64>,
    patches: Vec<(usize, Patch)>,
    n_results: usize,
    first_tensor: usize,
    tensor_params: Vec<Option<usize>>,
    cpu: i32,
    /// Memory that constant words point into.
    _kept: Vec<Box<[u64]>>,
}

/// Encodes parameters as the C ABI's code generator spells them.
#[derive(Default)]
struct Words {
    words: Vec<usize>,
    floats: Vec<f64>,
    patches: Vec<(usize, Patch)>,
    kept: Vec<Box<[u64]>>,
    cells: usize,
}

impl Words {
    fn keep(&mut self, data: Box<[u64]>) {
        self.words.push(data.as_ptr() as usize);
        self.kept.push(data);
    }

    fn patch(&mut self, patch: Patch) {
        self.patches.push((self.words.len(), patch));
        self.words.push(0);
    }

    /// None: not expressible.
    fn push(&mut self, param: &Param, form: Form) -> Option<()> {
        let kind = param.kind;
        match (&param.value, kind.list, kind.optional) {
            (Value::Opaque, ..) => return None,
            (Value::List(items), true, false) => self.push_list(kind, items)?,
            (Value::List(items), true, true) if kind.base != Base::Tensor => {
                // a pointer to a pointer to the items, then their number
                let inner = items_of(kind.base, items)?;
                let at = inner.as_ptr() as u64;
                self.kept.push(inner);
                self.keep(Box::new([at]));
                self.words.push(items.len());
            }
            (Value::None, true, true) => self.words.extend([0, 0]),
            (_, true, _) => return None,
            (Value::None, false, true) => {
                self.words.push(0);
                if kind.base == Base::Device {
                    self.words.push(0);
                }
            }
            (Value::Tensor(slot), false, true) => {
                self.cells += 1;
                self.patch(Patch::Cell(*slot));
            }
            (Value::Device(..), ..) => return None,
            (value, false, true) => {
                let word = bits(kind.base, value)?;
                self.keep(Box::new([word]));
            }
            (Value::Tensor(slot), false, false) => self.patch(Patch::Handle(*slot)),
            (Value::Float(value), false, false) => self.floats.push(*value),
            // the C ABI passes a Scalar as a double: an integer would change the result's type, but not of a product
            (Value::Int(Size::Const(value)), false, false) if kind.base == Base::Scalar => {
                if form == Form::Returns {
                    return None;
                }
                self.floats.push(*value as f64);
            }
            (value, false, false) => self.words.push(bits(kind.base, value)? as usize),
        }
        Some(())
    }

    fn push_list(&mut self, kind: Type, items: &[Value]) -> Option<()> {
        if kind.base != Base::Tensor {
            let data = items_of(kind.base, items)?;
            self.keep(data);
        } else if kind.optional_items {
            let slots = items.iter().map(optional_slot).collect::<Option<Vec<_>>>()?;
            self.cells += 2 * slots.len();
            self.patch(Patch::Cells(slots));
        } else {
            let slots = items.iter().map(|v| optional_slot(v).flatten()).collect::<Option<Vec<_>>>()?;
            self.cells += slots.len();
            self.patch(Patch::Handles(slots));
        }
        self.words.push(items.len());
        Some(())
    }
}

fn optional_slot(value: &Value) -> Option<Option<usize>> {
    match value {
        Value::Tensor(slot) => Some(Some(*slot)),
        Value::None => Some(None),
        _ => None,
    }
}

/// A constant as the word that stands for it.
fn bits(base: Base, value: &Value) -> Option<u64> {
    match (base, value) {
        (Base::Int, Value::Int(size)) => size.as_const().map(|v| v as u64),
        (Base::Float, Value::Float(v)) => Some(v.to_bits()),
        (Base::Bool, Value::Bool(v)) => Some(u64::from(*v)),
        (_, Value::Code(v)) => Some(*v as u32 as u64),
        _ => None,
    }
}

/// Items of a list: integers and doubles take 8 bytes, bools 4.
fn items_of(base: Base, items: &[Value]) -> Option<Box<[u64]>> {
    let words = items.iter().map(|v| bits(base, v)).collect::<Option<Vec<u64>>>()?;
    match base {
        Base::Int | Base::Float => Some(words.into()),
        Base::Bool => Some(words.chunks(2).map(|c| c[0] | c.get(1).unwrap_or(&0) << 32).collect()),
        _ => None,
    }
}

impl ShimCall {
    fn build(schema: &str, params: &[Param], n_results: usize) -> Option<ShimCall> {
        let (symbol, form) = shims::lookup(schema)?;
        let shim = Shim::find(symbol)?;
        let mut w = Words::default();
        if form != Form::Returns {
            w.words.push(0); // the tensor that receives the result
        }
        for param in params {
            w.push(param, form)?;
        }
        let results = if form == Form::Returns { n_results } else { 0 };
        if w.cells > CELLS || n_results > RESULTS || w.words.len() + results > torch::SHIM_WORDS || w.floats.len() > torch::SHIM_FLOATS {
            return None;
        }
        let tensor_params: Vec<Option<usize>> =
            params.iter().map(|p| if let Value::Tensor(slot) = p.value { Some(slot) } else { None }).collect();
        let mut slots = Vec::new();
        params.iter().for_each(|p| p.slots(&mut slots));
        Some(ShimCall {
            shim,
            form,
            words: w.words,
            floats: w.floats,
            patches: w.patches,
            n_results,
            first_tensor: *slots.first()?,
            tensor_params,
            cpu: torch::code_of("aoti_torch_device_type_cpu")?,
            _kept: w.kept,
        })
    }

    /// These functions go straight to the CPU's kernels.
    fn on_cpu(&self, frame: &Frame<'_, '_>) -> bool {
        frame.handle(self.first_tensor).is_ok_and(|h| h.device_kind() == self.cpu)
    }

    fn call(&self, frame: &Frame<'_, '_>) -> Outcome<Results> {
        let mut cells = [0usize; CELLS];
        let base = cells.as_mut_ptr() as usize;
        let mut used = 0;
        let mut results = [0usize; RESULTS];
        let mut words = [0usize; torch::SHIM_WORDS];
        let mut n = self.words.len();
        words[..n].copy_from_slice(&self.words);
        let mut cell = |value: usize| {
            cells[used] = value;
            used += 1;
            base + 8 * (used - 1)
        };
        for (at, patch) in &self.patches {
            words[*at] = match patch {
                Patch::Handle(slot) => frame.handle(*slot)?.word(),
                Patch::Cell(slot) => cell(frame.handle(*slot)?.word()),
                Patch::Handles(slots) => {
                    let mut first = base;
                    for (i, slot) in slots.iter().enumerate() {
                        let address = cell(frame.handle(*slot)?.word());
                        first = if i == 0 { address } else { first };
                    }
                    first
                }
                Patch::Cells(slots) => {
                    let mut addresses = Vec::with_capacity(slots.len());
                    for slot in slots {
                        addresses.push(match slot {
                            Some(slot) => cell(frame.handle(*slot)?.word()),
                            None => 0,
                        });
                    }
                    let mut first = base;
                    for (i, address) in addresses.into_iter().enumerate() {
                        let at = cell(address);
                        first = if i == 0 { at } else { first };
                    }
                    first
                }
            };
        }
        if self.form != Form::Returns {
            let out = self.matmul_result(frame)?;
            words[0] = out.handle().word();
            self.shim.call(&words[..n], &self.floats)?;
            return Ok(vec![Some(out)]);
        }
        let into = results.as_mut_ptr() as usize;
        for i in 0..self.n_results {
            words[n] = into + 8 * i;
            n += 1;
        }
        self.shim.call(&words[..n], &self.floats)?;
        std::hint::black_box(&mut results); // written through its address
        Ok(results[..self.n_results].iter().map(|&word| torch::adopt(word)).collect())
    }

    /// The tensor that a matrix product is written to; a failure for shapes that the operator would reject.
    fn matmul_result(&self, frame: &Frame<'_, '_>) -> Outcome<Tensor> {
        let (a, b, rank) = match self.form {
            Form::MatmulInto(a, b) => (a, b, 2),
            Form::BatchedInto(a, b) => (a, b, 3),
            Form::Returns => return Err(Failure("not a product".into())),
        };
        let bad = || Failure("a matrix product of other than matrices".into());
        let handle = |i: usize| self.tensor_params.get(i).copied().flatten().ok_or_else(bad).and_then(|slot| frame.handle(slot));
        let (a, b) = (handle(a)?, handle(b)?);
        if a.dim() != rank || b.dim() != rank {
            return Err(bad());
        }
        let size = |h: Handle, dim: i64| h.size(dim).ok_or_else(bad);
        let (rows, columns) = (size(a, rank - 2)?, size(b, rank - 1)?);
        let device = Device { kind: self.cpu, index: 0 };
        if rank == 2 {
            return Tensor::empty_strided(&[rows, columns], &[columns.max(1), 1], a.dtype(), device);
        }
        let batch = size(a, 0)?;
        Tensor::empty_strided(&[batch, rows, columns], &[rows.max(1) * columns.max(1), columns.max(1), 1], a.dtype(), device)
    }
}

// -- 2. the dispatcher ------------------------------------------------------------------------------------------------

struct StackCall {
    name: CString,
    overload: CString,
    list_result: bool,
    n_results: usize,
}

impl StackCall {
    fn build(schema: &Bound<'_, PyAny>, params: &[Param], returns: &Returns) -> PyResult<Option<StackCall>> {
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

    fn call(&self, params: &[Param], frame: &Frame<'_, '_>) -> Outcome<Results> {
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

// -- 3. Python --------------------------------------------------------------------------------------------------------

/// A Python value with holes for tensors and sizes.
enum Template {
    Const(Py<PyAny>),
    Slot(usize),
    Size(Size),
    List(Vec<Template>),
    Tuple(Vec<Template>),
}

struct PyCall {
    op: Py<PyAny>,
    args: Vec<Template>,
    kwargs: Vec<(Py<PyAny>, Template)>,
}

impl PyCall {
    fn build(reader: &Reader<'_>, op: &Bound<'_, PyAny>, args: &Bound<'_, PyTuple>, kwargs: &Bound<'_, PyDict>) -> PyResult<PyCall> {
        let args = args.iter().map(|v| Template::build(reader, &v)).collect::<PyResult<_>>()?;
        let kwargs = kwargs.iter().map(|(k, v)| Ok((k.unbind(), Template::build(reader, &v)?))).collect::<PyResult<_>>()?;
        // what OpOverload.__call__ calls, without its Python frame
        let op = op.getattr_opt("_op")?.unwrap_or_else(|| op.clone());
        Ok(PyCall { op: op.unbind(), args, kwargs })
    }

    fn slots(&self, out: &mut Vec<usize>) {
        self.args.iter().for_each(|t| t.slots(out));
        self.kwargs.iter().for_each(|(_, t)| t.slots(out));
    }

    fn call(&self, py: Python<'_>, frame: &Frame<'_, '_>) -> PyResult<Results> {
        let args = self.args.iter().map(|t| t.fill(py, frame)).collect::<PyResult<Vec<_>>>()?;
        let kwargs = PyDict::new(py);
        for (name, template) in &self.kwargs {
            kwargs.set_item(name, template.fill(py, frame)?)?;
        }
        let result = self.op.bind(py).call(PyTuple::new(py, args)?, Some(&kwargs))?;
        let mut out = Vec::new();
        flatten(py, &result, &mut out)?;
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
    fn build(reader: &Reader<'_>, value: &Bound<'_, PyAny>) -> PyResult<Template> {
        if let Some(slot) = reader.slot(value)? {
            return Ok(Template::Slot(slot));
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

    fn slots(&self, out: &mut Vec<usize>) {
        match self {
            Template::Slot(slot) => out.push(*slot),
            Template::List(items) | Template::Tuple(items) => items.iter().for_each(|t| t.slots(out)),
            Template::Const(_) | Template::Size(_) => {}
        }
    }

    fn fill<'py>(&self, py: Python<'py>, frame: &Frame<'_, '_>) -> PyResult<Bound<'py, PyAny>> {
        let all = |items: &[Template]| items.iter().map(|t| t.fill(py, frame)).collect::<PyResult<Vec<_>>>();
        match self {
            Template::Const(value) => Ok(value.bind(py).clone()),
            Template::Slot(slot) => frame.object(py, *slot),
            Template::Size(size) => Ok(size.eval(frame.env)?.into_pyobject(py)?.into_any()),
            Template::List(items) => Ok(PyList::new(py, all(items)?)?.into_any()),
            Template::Tuple(items) => Ok(PyTuple::new(py, all(items)?)?.into_any()),
        }
    }
}
