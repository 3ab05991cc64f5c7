//! A call of an ATen operator, by the fastest of three routes that fits.
//!
//! In: an `ir.plan.Aten`.  Out: `Aten`, whose `call` fills the result slots.  The routes, in order of preference:
//! 1. `by_shim.rs`: the C ABI's own function of this operator (`shims.rs`);
//! 2. `by_stack.rs`: the dispatcher, with arguments encoded by the schema;
//! 3. `by_python.rs`: the OpOverload itself, with the GIL.
//!
//! A native call that fails is repeated from Python, to raise the same exception as eager.  If Python succeeds, its
//! result is used and the step stays on the Python route.  An operator with `from_python` takes that route from the
//! first call: its kernel is written in Python, or a second call would find changed state.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::argument::{Base, Param, Reader, Type};
use super::by_python::PyCall;
use super::by_shim::ShimCall;
use super::by_stack::StackCall;
use super::pins::Forms;
use super::{Frame, StepError};
use crate::ffi::aten::{BelowAutograd, Failure, Handle, Outcome, Tensor};
use crate::ffi::Owned;
use crate::registered_object;

pub struct Aten {
    pub name: String,
    params: Vec<Param>,
    pub out: Vec<Option<usize>>,
    shim: Option<ShimCall>,
    stack: Option<StackCall>,
    python: PyCall,
    only_python: AtomicBool,
    mutates: bool,
    /// Whether the operator belongs to another library.  It may then wait for threads that need the GIL.
    foreign: bool,
    /// Slots of the tensor arguments.
    pub reads: Vec<usize>,
}

/// Namespaces of collectives.  A failed call is not repeated, because no process may call a collective alone.
const MEETING: [&str; 3] = ["_c10d_functional", "_c10d_functional_autograd", "c10d_functional"];

/// Namespaces of operators that never wait for another thread.
const OURS: [&str; 4] = ["aten", "prim", "prims", "mkldnn"];

pub type Results = Vec<Option<Tensor>>;

/// Operators that the dispatcher's C ABI failed to call, although their arguments can be encoded.  (Such kernels take
/// `int[]` where the schema says `SymInt[]`.)  The first failure adds an operator, for all later plans.
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
        let python = PyCall::build(reader, &op, &args, &kwargs, schema.getattr("returns")?.len()? > 0)?;
        let mut reads = Vec::new();
        python.slots(&mut reads);
        let returns = returns(&schema)?;
        let shim = ShimCall::build(&schema.str()?.to_cow()?, &params, out.len());
        let name = op.str()?.to_string();
        let namespace = name.split('.').next().unwrap_or_default();
        let foreign = !OURS.contains(&namespace);
        let from_python: bool = step.getattr("from_python")?.extract()?;
        let stack = if from_python || refused().contains(&name) || MEETING.contains(&namespace) {
            None
        } else {
            StackCall::build(&schema, &params, &returns)?
        };
        if matches!(returns, Returns::Tensors(n) if n != out.len()) {
            return Err(PyValueError::new_err(format!("{schema}: the plan names {} results", out.len())));
        }
        let only_python = AtomicBool::new(false);
        let mutates = schema.getattr("is_mutable")?.extract()?;
        Ok(Aten { name, mutates, foreign, params, out, shim, stack, python, only_python, reads })
    }

    pub fn route(&self) -> &'static str {
        match (self.only_python.load(Ordering::Relaxed), &self.shim, &self.stack) {
            (false, Some(_), _) => "shim",
            (false, None, Some(_)) => "dispatcher",
            _ => "python",
        }
    }

    /// Calls the operator.  The GIL is released if there is much to read, and taken again for Python.
    pub fn call(&self, frame: &mut Frame<'_, '_>) -> Result<(), StepError> {
        let _below = BelowAutograd::enter(self.mutates);
        if !self.only_python.load(Ordering::Relaxed) {
            let written = if self.mutates && !self.foreign { frame.forms(&self.reads)? } else { Forms::new() };
            match self.native(frame)? {
                Some(Ok(results)) if self.foreign => return self.end_of_other_code(frame, results),
                Some(Ok(results)) => {
                    self.store(frame, results)?;
                    return frame.moved(&written);
                }
                Some(Err(failure)) => return self.again(frame, &failure),
                None => {}
            }
        }
        self.call_python(frame)
    }

    /// Attaches to PyO3 during the call, because errors and objects may be dropped in it.
    fn call_python(&self, frame: &mut Frame<'_, '_>) -> Result<(), StepError> {
        frame.hand_out(self.reads.iter().copied())?;
        frame.gil.acquire();
        let ending = || Failure("the interpreter is shutting down".into());
        let results = Python::try_attach(|py| self.python.call(py, frame)).ok_or_else(ending)??;
        self.end_of_other_code(frame, results)
    }

    /// None if only Python can call the operator.
    fn native(&self, frame: &mut Frame<'_, '_>) -> Result<Option<Outcome<Results>>, StepError> {
        if self.shim.is_none() && self.stack.is_none() {
            return Ok(None);
        }
        if self.foreign {
            frame.hand_out(self.reads.iter().copied())?;
            frame.release_gil()?;
        }
        let sizes = self.reads.iter().filter_map(|&slot| frame.handle(slot).ok()).map(Handle::numel);
        frame.release_gil_for(sizes.fold(0, |sum, n| sum.saturating_add_signed(n)))?;
        frame.steady(&self.reads)?;
        if let Some(shim) = &self.shim {
            if shim.on_cpu(frame) && self.reads.iter().all(|&slot| frame.handle(slot).is_ok_and(Handle::is_dense)) {
                return Ok(Some(shim.call(frame)));
            }
        }
        Ok(self.stack.as_ref().map(|stack| stack.call(&self.params, frame)))
    }

    /// Ends a call of foreign code: stores and hands out the results, and resolves all tensors, since that code may do
    /// anything.
    fn end_of_other_code(&self, frame: &mut Frame<'_, '_>, results: Results) -> Result<(), StepError> {
        frame.gil.acquire();
        self.store(frame, results)?;
        frame.resolve_all(frame.next + 1)?;
        Ok(frame.hand_out(self.out.iter().copied().flatten())?)
    }

    #[cold]
    fn again(&self, frame: &mut Frame<'_, '_>, failure: &Failure) -> Result<(), StepError> {
        self.call_python(frame)?;
        self.only_python.store(true, Ordering::Relaxed);
        refused().insert(self.name.clone());
        let text =
            format!("{}: called from Python from now on, because the native call failed: {}", self.name, failure.0);
        let py = frame.gil.acquire();
        registered_object::PLAN_LOG.get(py)?.call(&[Owned::str(&text)?.get()], None)?;
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

pub enum Returns {
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
