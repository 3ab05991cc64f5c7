//! Calls an operator through its own function in torch's C ABI.
//!
//! In: parameters and a row of `shims.rs`.  Out: `ShimCall`: the argument words, complete except for the tensors.

use super::argument::{Base, Param, Type, Value};
use super::aten::Results;
use super::shims::{self, Form};
use super::size::Size;
use super::Frame;
use crate::ffi::aten::{self as torch, Device, Failure, Handle, Outcome, Shim, Tensor};

/// The value of an argument word that is written at call time.
enum Patch {
    Handle(usize),
    /// The address of a cell that holds the handle.
    Cell(usize),
    /// The address of an array of handles.
    Handles(Vec<usize>),
    /// The address of an array of handle addresses; null for None.
    Cells(Vec<Option<usize>>),
}

const CELLS: usize = 64;
const RESULTS: usize = 8;

pub struct ShimCall {
    shim: Shim,
    form: Form,
    words: Vec<usize>,
    floats: Vec<f64>,
    patches: Vec<(usize, Patch)>,
    n_results: usize,
    first_tensor: usize,
    tensor_params: Vec<Option<usize>>,
    cpu: i32,
    /// The memory that constant words point to.
    _kept: Vec<Box<[u64]>>,
}

/// Encodes parameters in the format of the C ABI's code generator.
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

    /// None if the parameter cannot be expressed.
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
            // The C ABI passes a Scalar as a double.  For an integer, that would change the dtype of the result, except
            // for a product.
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

/// The word that represents a constant.
fn bits(base: Base, value: &Value) -> Option<u64> {
    match (base, value) {
        (Base::Int, Value::Int(size)) => size.as_const().map(|v| v as u64),
        (Base::Float, Value::Float(v)) => Some(v.to_bits()),
        (Base::Bool, Value::Bool(v)) => Some(u64::from(*v)),
        (_, Value::Code(v)) => Some(*v as u32 as u64),
        _ => None,
    }
}

/// The items of a list: 8 bytes each for integers and doubles, 4 for bools.
fn items_of(base: Base, items: &[Value]) -> Option<Box<[u64]>> {
    let words = items.iter().map(|v| bits(base, v)).collect::<Option<Vec<u64>>>()?;
    match base {
        Base::Int | Base::Float => Some(words.into()),
        Base::Bool => Some(words.chunks(2).map(|c| c[0] | c.get(1).unwrap_or(&0) << 32).collect()),
        _ => None,
    }
}

impl ShimCall {
    pub fn build(schema: &str, params: &[Param], n_results: usize) -> Option<ShimCall> {
        let (symbol, form) = shims::lookup(schema)?;
        let shim = Shim::find(symbol)?;
        let mut w = Words::default();
        if form != Form::Returns {
            w.words.push(0); // the tensor that receives the result
        }
        for param in params {
            w.push(param, form)?;
        }
        if w.cells > CELLS
            || n_results > RESULTS
            || w.words.len() + n_results > torch::SHIM_WORDS
            || w.floats.len() > torch::SHIM_FLOATS
        {
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

    /// Whether the tensors are on the CPU.  These functions call the CPU's kernels directly, which take dense tensors only.
    pub fn on_cpu(&self, frame: &Frame<'_, '_>) -> bool {
        frame.handle(self.first_tensor).is_ok_and(|h| h.device_kind() == self.cpu)
    }

    pub fn call(&self, frame: &Frame<'_, '_>) -> Outcome<Results> {
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

    /// The tensor that receives a matrix product.  Fails for shapes that the operator would reject.
    fn matmul_result(&self, frame: &Frame<'_, '_>) -> Outcome<Tensor> {
        let (a, b, rank) = match self.form {
            Form::MatmulInto(a, b) => (a, b, 2),
            Form::BatchedInto(a, b) => (a, b, 3),
            Form::Returns => return Err(Failure("not a product".into())),
        };
        let bad = || Failure("a matrix product of tensors that are not matrices".into());
        let handle =
            |i: usize| self.tensor_params.get(i).copied().flatten().ok_or_else(bad).and_then(|slot| frame.handle(slot));
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
        let large = || Failure(format!("a matrix of {rows} x {columns} elements: the limit is 2**63 - 1"));
        let each = rows.max(1).checked_mul(columns.max(1)).ok_or_else(large)?;
        Tensor::empty_strided(&[batch, rows, columns], &[each, columns.max(1), 1], a.dtype(), device)
    }
}
