//! The native executor of a compiled graph: `_native.Plan`.
//!
//! In: an `ir.plan.Plan`, compiled by `build.rs`.  Out: `Plan::run_on`, which executes the steps through torch's C ABI
//! and returns the outputs as Python objects.  Python code runs only for a step that the C ABI cannot do.
//!
//! Buffers that only kernels use need no tensor.  They are offsets into one scratch block for each call and device
//! (`arena.rs`).  The first step with much work releases the GIL; a step that needs Python takes it again.  `pins.rs`
//! protects a run against other code that changes its tensors meanwhile.  A plan is immutable: several threads may run
//! it at once.
//!
//! Reading order:
//! - `build.rs`: compiles a plan;
//! - `size.rs`, `real.rs`: integers and floats of a call;
//! - `arena.rs`: memory;
//! - `argument.rs`, `aten.rs`, and its routes `by_shim.rs`, `by_stack.rs`, `by_python.rs`: operators;
//! - `launch.rs`: GPU kernels;
//! - `launch_batch.rs`: launches that follow each other, started together;
//! - `cuda_graphs.rs`: recordings of all GPU kernels of a call;
//! - `pack.rs`: packed weights;
//! - `pins.rs`, `shared.rs`: foreign code, and inputs that share memory;
//! - `object.rs`: the Python type.

mod arena;
mod argument;
mod aten;
mod build;
mod by_python;
mod by_shim;
mod by_stack;
mod cuda_graphs;
mod gpu_product;
mod launch;
mod launch_batch;
mod object;
mod pack;
mod pins;
pub mod real;
mod shared;
mod shims;
pub mod size;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use smallvec::{smallvec, SmallVec};
use std::time::Instant;

use crate::ffi::aten::pytype::InputList;
use crate::ffi::aten::{
    self as torch, BelowAutograd, Device, Failure, Gil, Handle, KernelFn, Object, Outcome, Scratch, Tensor,
    UnwrappedTensor, VersionCount,
};
use crate::ffi::cublas;
use crate::ffi::object::{clear_error, import};
use crate::ffi::product;
use crate::ffi::team;
use crate::ffi::{Obj, Owned, Raised, Res};
use crate::hook_state::paused;
use crate::registered_object;
use crate::watch::{eye, CallObserver, Range};
use arena::{Block, DynamicBlock};
use aten::Aten;
use cuda_graphs::{Graphs, Replay};
use gpu_product::GpuProduct;
use launch::Launch;
use launch_batch::{Batch, Recordings};
use pack::Pack;
use pins::Pins;
use real::Real;
use size::{Dims, Numbers, Size, FLOAT, NUMBER};

/// Amount of work (in elements) from which the GIL is released.  For less work, releasing it costs more than the work.
const RELEASE_WORK: u64 = 20_000;
/// Plans with at most this many slots store their slots on the C stack.
const SMALL: usize = 32;
/// Tensors with memory lie above this address in most programs; below it, their storage is looked at.
const LOWEST: usize = 1 << 40;

/// A step, ready to run.
enum Step {
    Alloc {
        slot: usize,
        shape: Dims,
        stride: Dims,
        dtype: i32,
        device: Device,
    },
    /// A buffer without a tensor, at an offset in a scratch block.
    Place {
        slot: usize,
        block: usize,
        offset: usize,
    },
    /// A buffer without a tensor whose size is known only in a call.  It is a part of the host's block.
    DynamicBlock {
        slot: usize,
        room: usize,
    },
    View {
        slot: usize,
        base: usize,
        shape: Dims,
        stride: Dims,
        offset: Size,
        dtype: Option<Cast>,
    },
    /// A view that only kernels use: an address.
    Shift {
        slot: usize,
        base: usize,
        bytes: usize,
    },
    Kernel {
        kernel: KernelFn,
        slots: Box<[usize]>,
        scalars: Dims,
        work: u64,
    },
    Launch(Box<Launch>),
    GpuProduct(Box<GpuProduct>),
    Aten(Box<Aten>),
    Pack(Box<Pack>),
    /// Gives an operator's result the layout that kernels expect.  Copies the result if its layout differs.
    Expect {
        slot: usize,
        shape: Dims,
        stride: Dims,
        dtype: i32,
        device: Device,
    },
    /// Increments the version counters of the tensors, as a write does.
    CountVersions(Box<[usize]>),
    Free(Box<[usize]>),
    CopyInto {
        target: usize,
        source: usize,
    },
    /// Computes a float from symbols.
    Compute(Real),
}

/// Reinterpretation of a storage as another dtype.
struct Cast {
    dtype: i32,
    itemsize: i64,
    /// The operator that views the flat storage as the dtype.
    view: torch::StorageCast,
}

/// How the plan builds an output.
enum Output {
    Input(usize),
    Const(Py<PyAny>),
    /// An integer computed from sizes.
    Number(Size),
    /// The float at this position of the environment.
    Float(usize),
    /// The position of a tensor in `Plan::constants`.
    Constant(usize),
    /// A tensor created by the plan.  `keep`: a later output returns the same object.
    Slot {
        slot: usize,
        keep: bool,
    },
    /// The same object as an earlier output.
    Again(usize),
}

/// A tensor that the plan owns.  Stored as a Python object only, so that the garbage collector sees all its references.
struct Constant {
    slot: usize,
    object: Py<PyAny>,
}

/// A compiled graph, ready to run.
pub struct Plan {
    pub name: String,
    n_inputs: usize,
    n_slots: usize,
    steps: Vec<Step>,
    /// A description of each step, for messages.
    labels: Vec<String>,
    outputs: Vec<Output>,
    constants: Vec<Constant>,
    symbols: Vec<(usize, i64)>,
    /// The name of each word of the environment, and whether the word is a float.
    words: Vec<(String, bool)>,
    /// Whether a step reads each input.  Other inputs are at most returned, and may be any object.
    reads_input: Vec<bool>,
    /// For each step: the inputs that no later step reads and that are no outputs.
    ends: Vec<Box<[usize]>>,
    /// Slots whose address a kernel needs.
    wants_ptr: Vec<bool>,
    /// For each slot: the last step that reads it.
    last: Vec<usize>,
    /// Slots of the inputs that steps read, and of the constants.
    outside: Box<[usize]>,
    /// Whether a step reads a tensor itself, not only its address.
    reads_tensors: bool,
    /// The scratch block of the host, then one for each GPU that needs one.
    blocks: Vec<Block>,
    /// The dynamic parts of the host's block.  They follow its static part, one after the other.
    rooms: Vec<DynamicBlock>,
    exclusive: shared::Exclusive,
    graphs: Option<Graphs>,
    /// Whether launches that follow each other start together.
    batches: bool,
    recordings: Recordings,
    /// Whether a step may run Python code: an operator, a version count, or a computed float.
    may_run_python: bool,
    source: Py<PyAny>,
}

/// The contents of a slot during a run.
pub enum Slot {
    Empty,
    Borrowed(Handle),
    Owned(Tensor),
}

/// The state of one run.
struct Frame<'a, 'py> {
    plan: &'a Plan,
    inputs: &'a [Object<'a>],
    slots: &'a mut [Slot],
    ptrs: &'a mut [usize],
    env: &'a mut [i64],
    /// Start of each room, as an offset in the host's block.
    rooms: &'a [usize],
    gil: Gil<'py>,
    /// Declared after `gil`, so that pins are dropped while the GIL is held.
    pins: Pins,
    /// The current step, or the next one.
    next: usize,
    /// Start address of each scratch block.
    blocks: &'a [usize],
    threads: Option<i32>,
    /// The device of the last GPU kernel, and its stream.
    stream: Option<(i32, usize)>,
    batch: Batch,
    /// The owner of the inputs, if each input may be freed after its last use.
    taken: Option<&'a InputList>,
    room: (Numbers, Numbers),
}

impl Plan {
    /// One word for each step: how the step runs.
    fn routes(&self) -> Vec<String> {
        let route = |step: &Step| match step {
            Step::Alloc { .. } => "alloc",
            Step::Place { .. } => "place",
            Step::DynamicBlock { .. } => "room",
            Step::View { .. } => "view",
            Step::Shift { .. } => "shift",
            Step::Kernel { .. } => "kernel",
            Step::Launch(_) => "launch",
            Step::GpuProduct(_) => "product",
            Step::Aten(call) => call.route(),
            Step::Pack(_) => "pack",
            Step::Expect { .. } => "expect",
            Step::CountVersions(_) => "count_versions",
            Step::Free(_) => "free",
            Step::CopyInto { .. } => "copy",
            Step::Compute(_) => "compute",
        };
        self.steps.iter().map(|step| route(step).to_owned()).collect()
    }

    /// Runs the plan and passes the outputs to `sink` in order.  `taken`: the owner of the inputs, if each input may be
    /// freed after its last use.
    fn run_on<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Object<'_>],
        taken: Option<&InputList>,
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        if inputs.len() != self.n_inputs {
            let text = format!("graph {}: {} inputs expected, {} given", self.name, self.n_inputs, inputs.len());
            return Err(PyTypeError::new_err(text));
        }
        if self.may_run_python {
            return paused(|| self.run_anywhere(py, inputs, taken, sink));
        }
        self.run_anywhere(py, inputs, taken, sink)
    }

    fn run_anywhere<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Object<'_>],
        taken: Option<&InputList>,
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        if self.n_slots <= SMALL {
            let mut slots = [const { Slot::Empty }; SMALL];
            let mut ptrs = [0usize; SMALL];
            return self.run_in(py, (inputs, taken), &mut slots[..self.n_slots], &mut ptrs[..self.n_slots], sink);
        }
        let mut slots: Vec<Slot> = (0..self.n_slots).map(|_| Slot::Empty).collect();
        let mut ptrs = vec![0usize; self.n_slots];
        self.run_in(py, (inputs, taken), &mut slots, &mut ptrs, sink)
    }

    /// Whether the result of a call depends on the input.  If not, any object may be passed in its place.
    pub fn needs(&self, input: usize) -> bool {
        let is_output = |output: &Output| matches!(output, Output::Input(slot) if *slot == input);
        self.reads_input.get(input).is_none_or(|read| *read)
            || self.symbols.iter().any(|(slot, _)| *slot == input)
            || self.outputs.iter().any(is_output)
            || self.exclusive.parts().is_some()
    }

    fn run_in<'py>(
        &self,
        py: Python<'py>,
        (inputs, taken): (&[Object<'_>], Option<&InputList>),
        slots: &mut [Slot],
        ptrs: &mut [usize],
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        let mut env = self.numbers(py, inputs)?; // before the first address is read: `__index__` may run any code
        let mut may_replay = self.graphs.is_some();
        let is_odd = loop {
            let is_odd = self.bind(py, inputs, slots, ptrs)?;
            if let Some(eager) = self.exclusive.instead(&slots[..self.n_inputs]) {
                return paused(|| shared::run_eager(self, py, eager, inputs, sink));
            }
            self.measure(&mut env, slots)?;
            if is_odd || !may_replay {
                break is_odd;
            }
            match self.replay(py, inputs, &env, slots, sink)? {
                Replay::Done => return Ok(()),
                Replay::No => break is_odd,
                Replay::Asked => may_replay = false, // Python code ran: addresses are read again
            }
        };
        let mut room = (Numbers::new(), Numbers::new());
        let (rooms, bytes) = self.room_starts(&env, &mut room).map_err(|Failure(text)| self.unfit(&text))?;
        let no_memory = |Failure(text)| PyMemoryError::new_err(text);
        let scratch = (bytes > 0).then(|| Scratch::take(bytes)).transpose().map_err(no_memory)?;
        let mut on_devices: SmallVec<[Tensor; 1]> = SmallVec::new();
        let mut blocks: SmallVec<[usize; 2]> = smallvec![scratch.as_ref().map_or(0, Scratch::address)];
        for block in &self.blocks[1..] {
            blocks.push(block.take(&mut on_devices)?);
        }
        let gil = Gil::held(py);
        let (blocks, threads, stream) = (&blocks[..], None, None);
        let mut frame = Frame {
            plan: self,
            inputs,
            slots,
            ptrs,
            env: &mut env,
            rooms: &rooms,
            gil,
            pins: Pins::default(),
            next: 0,
            blocks,
            threads,
            stream,
            batch: Batch::default(),
            taken,
            room,
        };
        if is_odd {
            frame.materialise().map_err(|error| self.explain_binding(error))?;
        }
        match eye(py) {
            None => {
                frame.batch.gathers = self.batches;
                self.run_steps(&mut frame, |_, _| ())?;
            }
            Some(eye) => self.run_steps_seen(&mut frame, &eye)?,
        }
        frame.gil.acquire();
        self.finish(py, &mut frame, sink)
    }

    /// Calls `around` with the position before each step, and with None after it.
    #[inline]
    fn run_steps(
        &self,
        frame: &mut Frame<'_, '_>,
        mut around: impl FnMut(&mut Frame<'_, '_>, Option<usize>),
    ) -> PyResult<()> {
        for (i, step) in self.steps.iter().enumerate() {
            around(frame, Some(i));
            frame.next = i;
            let result = if frame.pins.any_unfit() {
                frame.refuse(step).map_err(StepError::from).and_then(|()| frame.step(step))
            } else {
                frame.step(step)
            };
            around(frame, None);
            let ended = result.and_then(|()| match (frame.taken, &*self.ends[i]) {
                (Some(_), [_, ..]) => frame.end_inputs(i),
                _ => Ok(()),
            });
            if let Err(error) = ended {
                let _ = frame.flush(); // the step's error is the first
                let py = frame.gil.acquire();
                return Err(self.explain(py, i, error));
            }
        }
        frame.flush().map_err(|error| {
            let py = frame.gil.acquire();
            self.explain(py, self.steps.len() - 1, error)
        })
    }

    /// `run_steps` while a profiler or watcher is active: one range for the graph and one for each step.  A step's time
    /// is the time of its call: GPU kernels are only started in it.
    #[cold]
    #[inline(never)]
    fn run_steps_seen(&self, frame: &mut Frame<'_, '_>, eye: &CallObserver) -> PyResult<()> {
        frame.pin()?;
        let _graph = eye.range(|| format!("graph {}", self.name));
        let mut times = vec![0.0; self.steps.len()];
        let mut current: Option<(usize, Instant, Option<Range>)> = None;
        self.run_steps(frame, |frame, begins| {
            frame.gil.acquire(); // a range starts and ends with the GIL held
            if let Some((i, start, range)) = current.take() {
                times[i] = start.elapsed().as_nanos() as f64;
                drop(range);
            }
            if let Some(i) = begins {
                let range = eye.range(|| self.labels[i].clone());
                current = Some((i, Instant::now(), range));
            }
        })?;
        let py = frame.gil.acquire();
        Ok(eye.tell_plan(Obj::of(self.source.bind(py)), &times)?)
    }

    /// Puts inputs and constants into their slots.  Returns whether one of them has no dense address (see
    /// `Frame::materialise`).
    fn bind(&self, py: Python<'_>, inputs: &[Object<'_>], slots: &mut [Slot], ptrs: &mut [usize]) -> PyResult<bool> {
        let mut is_odd = false;
        for (i, input) in inputs.iter().enumerate().filter(|(i, _)| self.reads_input[*i]) {
            let slot = match input.tensor(py) {
                Ok(tensor) => Slot::of(tensor),
                Err(error) => {
                    return Err(PyTypeError::new_err(format!("graph {}, input {i}: {}", self.name, error.value(py))))
                }
            };
            if self.wants_ptr[i] {
                match slot.dense_address()? {
                    Some(address) => ptrs[i] = address,
                    None => is_odd = true,
                }
            }
            slots[i] = slot;
        }
        for constant in &self.constants {
            let slot = Slot::of(Object::from_bound(constant.object.bind(py)).tensor(py)?);
            if self.wants_ptr[constant.slot] {
                match slot.dense_address()? {
                    Some(address) => ptrs[constant.slot] = address,
                    None => is_odd = true,
                }
            }
            slots[constant.slot] = slot;
        }
        Ok(is_odd)
    }

    /// The offset of each room in the host's block, and the size of the block in bytes.
    fn room_starts(&self, env: &[i64], room: &mut (Numbers, Numbers)) -> Outcome<(SmallVec<[usize; 8]>, usize)> {
        let (mut starts, mut bytes) = (SmallVec::new(), self.blocks[0].bytes);
        for wanted in &self.rooms {
            starts.push(bytes);
            let more = wanted.bytes(env, room)?;
            bytes = arena::add(bytes, more)?;
        }
        Ok((starts, bytes))
    }

    #[cold]
    fn explain_binding(&self, error: StepError) -> PyErr {
        match error {
            StepError::Failure(Failure(text)) | StepError::Launch(_, Failure(text)) => self.unfit(&text),
            StepError::Python(error) => error,
        }
    }

    #[cold]
    fn unfit(&self, text: &str) -> PyErr {
        PyRuntimeError::new_err(format!("graph {}: {text}", self.name))
    }

    /// The environment: the inputs that are numbers.  `measure` and steps fill the other words.
    fn numbers(&self, py: Python<'_>, inputs: &[Object<'_>]) -> PyResult<Numbers> {
        let mut env: Numbers = smallvec![0; self.words.len()];
        for (word, &(slot, dim)) in env.iter_mut().zip(&self.symbols) {
            *word = match dim {
                NUMBER => {
                    let number = inputs[slot].to_bound(py);
                    Obj::of(&number).exact_i64().map_or_else(|| number.extract(), Ok)?
                }
                FLOAT => inputs[slot].to_bound(py).extract::<f64>()?.to_bits() as i64,
                _ => 0,
            };
        }
        Ok(env)
    }

    /// Reads the size symbols from the sizes of inputs.
    fn measure(&self, env: &mut Numbers, slots: &[Slot]) -> PyResult<()> {
        for (word, &(slot, dim)) in env.iter_mut().zip(&self.symbols) {
            let lacks = || PyTypeError::new_err(format!("graph {}: input {slot} has no dimension {dim}", self.name));
            if dim != NUMBER && dim != FLOAT {
                *word = slots[slot].handle()?.size(dim).ok_or_else(lacks)?;
            }
        }
        Ok(())
    }

    fn finish<'py>(
        &self,
        py: Python<'py>,
        frame: &mut Frame<'_, '_>,
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        let mut kept: Vec<(usize, Bound<'py, PyAny>)> = Vec::new();
        for (i, output) in self.outputs.iter().enumerate() {
            let object = match output {
                Output::Input(slot) => frame.inputs[*slot].to_bound(py),
                Output::Const(object) => object.bind(py).clone(),
                Output::Number(size) => {
                    let value = size.eval(frame.env).map_err(|Failure(text)| self.unfit(&text))?;
                    Owned::int(value)?.into_bound(py)
                }
                Output::Float(at) => Owned::float(f64::from_bits(frame.env[*at] as u64))?.into_bound(py),
                Output::Constant(at) => self.constants[*at].object.bind(py).clone(),
                Output::Again(first) => {
                    kept.iter().find(|(j, _)| j == first).map(|(_, o)| o.clone()).ok_or_else(|| self.empty(i))?
                }
                Output::Slot { slot, keep } => {
                    let Slot::Owned(tensor) = std::mem::replace(&mut frame.slots[*slot], Slot::Empty) else {
                        return Err(self.empty(i));
                    };
                    let object = tensor.into_py(py)?;
                    if *keep {
                        kept.push((i, object.clone()));
                    }
                    object
                }
            };
            sink(object);
        }
        Ok(())
    }

    #[cold]
    fn empty(&self, output: usize) -> PyErr {
        PyRuntimeError::new_err(format!("graph {}: output {output} is empty at the end", self.name))
    }

    /// Adds the graph and the step to an error.  An operator's exception keeps its type and message.
    #[cold]
    fn explain(&self, py: Python<'_>, step: usize, error: StepError) -> PyErr {
        let place = format!("graph {}, step {step} ({})", self.name, self.labels[step]);
        match error {
            StepError::Failure(Failure(text)) if matches!(self.steps[step], Step::Alloc { .. }) => {
                self.note(py, step, &place, PyRuntimeError::new_err(text))
            }
            StepError::Failure(Failure(text)) => PyRuntimeError::new_err(format!("{place}: {text}")),
            StepError::Launch(step, failure) => self.explain(py, step, StepError::Failure(failure)),
            StepError::Python(error) => self.note(py, step, &place, error),
        }
    }

    /// Adds a note to the exception.  If that fails, the exception is raised without it.
    fn note(&self, py: Python<'_>, step: usize, place: &str, error: PyErr) -> PyErr {
        let tell = || -> Res<Owned> {
            let (step, place) = (Owned::int(step as i64)?, Owned::str(&format!("in the compiled {place}"))?);
            let (source, error) = (Obj::of(self.source.bind(py)), Obj::of(error.value(py)));
            registered_object::STEP_FAILED.get(py)?.call(&[source, step.get(), place.get(), error], None)
        };
        tell().map_or_else(|_| clear_error(), drop);
        error
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (inputs, steps, outputs) = (self.n_inputs, self.steps.len(), self.outputs.len());
        write!(f, "<Plan {}: {inputs} inputs, {steps} steps, {outputs} outputs>", self.name)
    }
}

impl Step {
    /// Whether the step may run before launches that wait: it reads and writes no memory of a device, and runs no
    /// foreign code.  Steps that do so in rare cases start the launches themselves.
    fn may_overtake(&self) -> bool {
        match self {
            Step::Alloc { .. }
            | Step::Place { .. }
            | Step::DynamicBlock { .. }
            | Step::View { .. }
            | Step::Shift { .. }
            | Step::Launch(_)
            | Step::GpuProduct(_)
            | Step::CountVersions(_)
            | Step::Free(_)
            | Step::Compute(_) => true,
            Step::Kernel { .. } | Step::Aten(_) | Step::Pack(_) | Step::Expect { .. } | Step::CopyInto { .. } => false,
        }
    }

    /// The slots that a step reads, and the slots that it fills.
    fn traffic(&self) -> (Vec<usize>, Vec<usize>) {
        match self {
            Step::Alloc { slot, .. } | Step::Place { slot, .. } | Step::DynamicBlock { slot, .. } => {
                (vec![], vec![*slot])
            }
            Step::View { slot, base, .. } | Step::Shift { slot, base, .. } => (vec![*base], vec![*slot]),
            Step::Kernel { slots, .. } => (slots.to_vec(), vec![]),
            Step::Launch(launch) => (launch.slots.to_vec(), vec![]),
            Step::GpuProduct(product) => (product.slots.to_vec(), vec![]),
            Step::Aten(call) => (call.reads.clone(), call.out.iter().flatten().copied().collect()),
            Step::Pack(pack) => (vec![pack.weight], vec![pack.slot]),
            Step::Expect { slot, .. } => (vec![*slot], vec![]),
            Step::CountVersions(slots) => (slots.to_vec(), vec![]),
            Step::Free(_) => (vec![], vec![]),
            Step::CopyInto { target, source } => (vec![*target, *source], vec![]),
            Step::Compute(_) => (vec![], vec![]),
        }
    }
}

enum StepError {
    Failure(Failure),
    /// A launch of an earlier step that had waited.
    Launch(usize, Failure),
    Python(PyErr),
}

impl From<Failure> for StepError {
    fn from(failure: Failure) -> Self {
        StepError::Failure(failure)
    }
}

impl From<Raised> for StepError {
    fn from(raised: Raised) -> Self {
        StepError::Python(raised.into())
    }
}

impl From<PyErr> for StepError {
    fn from(error: PyErr) -> Self {
        StepError::Python(error)
    }
}

/// The exception for a kernel's error code: a row of `ir.plan.KERNEL_ERRORS`.
#[cold]
fn kernel_error(py: Python<'_>, code: i64) -> PyErr {
    let row = || -> PyResult<PyErr> {
        let table = registered_object::KERNEL_ERRORS.bound(py)?;
        let (class, text) = table.get_item(code)?.extract::<(Bound<'_, PyType>, String)>()?;
        Ok(PyErr::from_type(class, text))
    };
    row().unwrap_or_else(|_| PyRuntimeError::new_err(format!("a kernel returned the unknown error code {code}")))
}

/// The error for an operator's result with other sizes than the kernels expect.
#[cold]
fn other_sizes(py: Python<'_>, given: Vec<i64>, expected: &[i64]) -> PyErr {
    let text = || -> PyResult<String> {
        let form = registered_object::OTHER_SIZES.bound(py)?;
        form.call_method1("format", (given, expected.to_vec()))?.extract()
    };
    text().map_or_else(|error| error, PyRuntimeError::new_err)
}

/// The error for a write into an inference tensor outside inference mode.
#[cold]
fn inference_tensor(py: Python<'_>) -> PyErr {
    let text = || registered_object::INFERENCE_TENSOR.bound(py)?.extract::<String>();
    text().map_or_else(|error| error, PyRuntimeError::new_err)
}

impl Slot {
    fn of(tensor: UnwrappedTensor) -> Slot {
        match tensor {
            UnwrappedTensor::Borrowed(handle) => Slot::Borrowed(handle),
            UnwrappedTensor::Owned(tensor) => Slot::Owned(tensor),
        }
    }

    fn handle(&self) -> Outcome<Handle> {
        match self {
            Slot::Borrowed(handle) => Ok(*handle),
            Slot::Owned(tensor) => Ok(tensor.handle()),
            Slot::Empty => Err(Failure("a step reads a slot that holds no tensor".into())),
        }
    }

    /// The address of the first element.  None if the tensor is not dense (see `Handle::is_dense`).
    #[inline]
    fn dense_address(&self) -> Outcome<Option<usize>> {
        let handle = self.handle()?;
        if !handle.is_dense() {
            return Ok(None);
        }
        let address = handle.data_ptr()?;
        // Without memory, the address is that of the storage offset.
        if address < LOWEST && !handle.is_backed() {
            let text = "a tensor of the call has a non-zero number of elements, but its data is not allocated yet";
            return Err(Failure(text.into()));
        }
        Ok(Some(address))
    }

    /// The same address.  A tensor that is not dense is replaced by a materialised copy.
    #[inline]
    fn address(&mut self) -> Outcome<usize> {
        if let Some(address) = self.dense_address()? {
            return Ok(address);
        }
        let handle = self.handle()?;
        let _below = BelowAutograd::enter(true);
        let made = handle.materialised()?;
        let address = made.handle().data_ptr()?;
        *self = Slot::Owned(made);
        Ok(address)
    }
}

impl Frame<'_, '_> {
    fn step(&mut self, step: &Step) -> Result<(), StepError> {
        if self.batch.is_waiting() && !step.may_overtake() {
            self.flush()?;
        }
        match step {
            Step::Alloc { slot, shape, stride, dtype, device } => {
                let sizes = shape.resolve(self.env, &mut self.room.0)?;
                let strides = stride.resolve(self.env, &mut self.room.1)?;
                let tensor = match Tensor::empty_strided(sizes, strides, *dtype, *device) {
                    Err(_) if self.batch.holds_memory() => {
                        self.flush()?; // frees memory
                        let sizes = shape.resolve(self.env, &mut self.room.0)?;
                        let strides = stride.resolve(self.env, &mut self.room.1)?;
                        Tensor::empty_strided(sizes, strides, *dtype, *device)
                    }
                    made => made,
                };
                self.fill(*slot, tensor?)?;
            }
            Step::Place { slot, block, offset } => self.ptrs[*slot] = self.blocks[*block] + offset,
            Step::DynamicBlock { slot, room } => {
                self.ptrs[*slot] = self.blocks[0] + self.rooms[*room];
            }
            Step::Shift { slot, base, bytes } => self.ptrs[*slot] = self.ptrs[*base] + bytes,
            Step::View { slot, base, shape, stride, offset, dtype } => {
                if dtype.is_some() || !self.handle(*base)?.is_dense() {
                    self.flush()?; // an operator may read the memory
                }
                self.steady(&[*base])?;
                let tensor = self.view(*base, shape, stride, offset, dtype.as_ref())?;
                self.fill(*slot, tensor)?;
            }
            Step::Kernel { kernel, slots, scalars, work } => {
                self.release_gil_for(*work)?;
                self.launch(*kernel, slots, scalars)?;
            }
            Step::Launch(launch) => self.start(launch)?,
            Step::GpuProduct(product) => self.start_product(product)?,
            Step::Aten(call) => call.call(self)?,
            Step::Pack(pack) => pack.run(self)?,
            Step::Expect { slot, shape, stride, dtype, device } => {
                let given = self.handle(*slot)?;
                let sizes = shape.resolve(self.env, &mut self.room.0)?;
                let strides = stride.resolve(self.env, &mut self.room.1)?;
                if !given.has_sizes(sizes) {
                    return Err(other_sizes(self.gil.acquire(), given.sizes(), sizes).into());
                }
                if given.dtype() != *dtype || !given.has_strides(sizes, strides) {
                    let tensor = Tensor::empty_strided(sizes, strides, *dtype, *device)?;
                    let below = BelowAutograd::enter(true);
                    tensor.handle().copy_from(given)?;
                    drop(below);
                    self.fill(*slot, tensor)?;
                }
            }
            Step::CountVersions(slots) => {
                for slot in slots {
                    self.count_version(*slot)?;
                }
            }
            Step::Free(slots) => self.free(slots)?,
            Step::CopyInto { target, source } => {
                let work = self.handle(*target)?.numel() as u64;
                self.release_gil_for(work)?;
                self.steady(&[*target, *source])?;
                let (target, source) = (self.handle(*target)?, self.handle(*source)?);
                let _below = BelowAutograd::enter(true);
                target.copy_from(source)?;
            }
            Step::Compute(real) => {
                if !real.update(self.env) {
                    self.flush()?;
                    self.pin()?;
                    let py = self.gil.acquire();
                    real.by_python(py, &self.plan.words, self.env)?;
                }
            }
        }
        Ok(())
    }

    /// Increments the version counter as eager does before a write.
    fn count_version(&mut self, slot: usize) -> Result<(), StepError> {
        match self.handle(slot)?.count_version() {
            VersionCount::Yes => Ok(()),
            VersionCount::Refused => Err(inference_tensor(self.gil.acquire()).into()),
            VersionCount::Unknown => {
                self.flush()?;
                self.pin()?;
                let py = self.gil.acquire();
                let count = import(c"torch.autograd.graph")?.attr(c"increment_version")?;
                count.call(&[Obj::of(&self.object(py, slot)?)], None)?;
                Ok(())
            }
        }
    }

    fn launch(&mut self, kernel: KernelFn, slots: &[usize], scalars: &Dims) -> Result<(), StepError> {
        let threads = *self.threads.get_or_insert_with(torch::num_threads);
        let scalars = scalars.resolve(self.env, &mut self.room.0)?;
        let code = if slots.len() <= SMALL {
            let mut ptrs = [0usize; SMALL];
            for (at, slot) in ptrs.iter_mut().zip(slots) {
                *at = self.ptrs[*slot];
            }
            kernel.call(&ptrs[..slots.len()], scalars, threads)
        } else {
            let ptrs: Vec<usize> = slots.iter().map(|slot| self.ptrs[*slot]).collect();
            kernel.call(&ptrs, scalars, threads)
        };
        if code == 0 {
            return Ok(());
        }
        Err(kernel_error(self.gil.acquire(), code).into())
    }

    fn view(
        &mut self,
        base: usize,
        shape: &Dims,
        stride: &Dims,
        offset: &Size,
        dtype: Option<&Cast>,
    ) -> Outcome<Tensor> {
        let base = self.handle(base)?;
        let offset = offset.eval(self.env)?;
        let sizes = shape.resolve(self.env, &mut self.room.0)?;
        let strides = stride.resolve(self.env, &mut self.room.1)?;
        let Some(cast) = dtype else { return base.reinterpret(sizes, strides, offset) };
        // The whole storage, flat, viewed as the dtype.  The base's own offset is counted in new items.
        let large = || Failure(format!("a view at item {offset} of a storage: the limit is 2**63 - 1"));
        let start = base.storage_offset().checked_mul(base.itemsize()?).ok_or_else(large)?;
        let flat = base.reinterpret(&[base.storage_size() / base.itemsize()?], &[1], -base.storage_offset())?;
        if start % cast.itemsize != 0 {
            return Err(Failure(format!(
                "a view starts at byte {start}, which is not a multiple of {} bytes",
                cast.itemsize
            )));
        }
        let _below = BelowAutograd::enter(false);
        let flat = cast.view.call(flat.handle(), cast.dtype)?;
        let offset = (start / cast.itemsize).checked_add(offset).ok_or_else(large)?;
        flat.handle().reinterpret(sizes, strides, offset)
    }

    fn handle(&self, slot: usize) -> Outcome<Handle> {
        self.slots[slot].handle()
    }

    /// The tensor of a slot as a Python object.  For an input, this is the caller's own object.
    fn object<'py>(&self, py: Python<'py>, slot: usize) -> PyResult<Bound<'py, PyAny>> {
        if let Some(input) = self.inputs.get(slot) {
            return Ok(input.to_bound(py));
        }
        if let Some(constant) = self.plan.constants.iter().find(|c| c.slot == slot) {
            return Ok(constant.object.bind(py).clone());
        }
        self.handle(slot)?.to_owned()?.into_py(py)
    }

    fn fill(&mut self, slot: usize, tensor: Tensor) -> Outcome<()> {
        self.slots[slot] = Slot::Owned(tensor);
        self.pins.forget(slot);
        if self.plan.wants_ptr[slot] {
            self.ptrs[slot] = self.slots[slot].address()?;
        }
        Ok(())
    }

    fn release_gil_for(&mut self, work: u64) -> Outcome<()> {
        if work >= RELEASE_WORK {
            self.release_gil()?;
        }
        Ok(())
    }

    fn release_gil(&mut self) -> Outcome<()> {
        self.pin()?;
        self.gil.release();
        Ok(())
    }
}

/// `_native.torch_routes()`: how each capability of the loaded torch is used.
#[pyfunction]
fn torch_routes(py: Python<'_>) -> PyResult<std::collections::BTreeMap<&'static str, &'static str>> {
    crate::tensor_view::ready(py)?;
    Ok(torch::api()?.routes().into_iter().collect())
}

/// `_native.force_slow_routes(on)`: for tests; uses the documented fallbacks of wrapping and unwrapping.
#[pyfunction]
fn force_slow_routes(on: bool) {
    torch::force_slow(on);
}

/// `_native.kind_of(tensor)`: 0 if the values are stored in memory as they are, 1 if they are stored negated or
/// conjugated, 2 for any other tensor (sparse, without memory, ...).
#[pyfunction]
fn kind_of(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<u8> {
    crate::tensor_view::ready(py)?;
    Object::from_bound(tensor).tensor(py)?;
    Ok(crate::tensor_view::kind_of(Obj::of(tensor))?)
}

/// `_native.matrix_product(addresses, numbers, threads)`: the engine's kernel, for the plan's oracle and for tests.  The
/// numbers are those of `ir.plan.Product.scalars`; the addresses must be those of such matrices.
#[pyfunction]
fn matrix_product(py: Python<'_>, addresses: [usize; 3], numbers: [i64; 10], threads: i32) -> PyResult<()> {
    match KernelFn::matrix_product().call(&addresses, &numbers, threads) {
        0 => Ok(()),
        code => Err(kernel_error(py, code)),
    }
}

/// `_native.convolution(addresses, numbers, threads)`: as `matrix_product`, for `ir.plan.Convolution.scalars`.
#[pyfunction]
fn convolution(py: Python<'_>, addresses: Vec<usize>, numbers: [i64; 26], threads: i32) -> PyResult<()> {
    if addresses.len() != if numbers[0] == 0 { 3 } else { 4 } {
        return Err(PyTypeError::new_err("image, weight, out, and the bias if there is one"));
    }
    match KernelFn::convolution().call(&addresses, &numbers, threads) {
        0 => Ok(()),
        code => Err(kernel_error(py, code)),
    }
}

/// `_native.matrix_product_vectors(threads)`: bytes of a vector of the engine's kernel; 0 if it cannot run here, or not
/// with so many threads.
#[pyfunction]
fn matrix_product_vectors(threads: i32) -> usize {
    if threads > 1 && !team::has_threads() {
        return 0;
    }
    product::vector_bytes()
}

/// `_native.has_gpu_products()`: whether torch has loaded the library for products on GPUs.
#[pyfunction]
fn has_gpu_products() -> bool {
    cublas::is_loaded()
}

/// `_native.gpu_product_workspace(product)`: bytes of workspace for a product's algorithms; None if the library refuses it.
#[pyfunction]
fn gpu_product_workspace(product: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    match GpuProduct::build(product) {
        Ok(product) => Ok(product.workspace().ok()),
        Err(error) if error.is_instance_of::<PyRuntimeError>(product.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `_native.shim_schemas()`: schemas of the operators that are called without the dispatcher.
#[pyfunction]
fn shim_schemas() -> Vec<&'static str> {
    shims::schemas()
}

/// `_native.use_gpu_driver(path)`: plans built later start their kernels through this library.  None means
/// `libcuda.so.1`.
#[pyfunction]
fn use_gpu_driver(path: Option<&str>) -> PyResult<()> {
    Ok(crate::ffi::cuda::use_driver(path)?)
}

/// Adds `Plan` and its helpers to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("Plan", torch::pytype::create::<Plan>(m.py())?)?;
    m.add_function(wrap_pyfunction!(torch_routes, m)?)?;
    m.add_function(wrap_pyfunction!(force_slow_routes, m)?)?;
    m.add_function(wrap_pyfunction!(use_gpu_driver, m)?)?;
    m.add_function(wrap_pyfunction!(shared::unless_shared, m)?)?;
    m.add_function(wrap_pyfunction!(shared::shares_memory, m)?)?;
    m.add_function(wrap_pyfunction!(cuda_graphs::storage_holders, m)?)?;
    m.add_function(wrap_pyfunction!(kind_of, m)?)?;
    m.add_function(wrap_pyfunction!(matrix_product, m)?)?;
    m.add_function(wrap_pyfunction!(convolution, m)?)?;
    m.add_function(wrap_pyfunction!(matrix_product_vectors, m)?)?;
    m.add_function(wrap_pyfunction!(has_gpu_products, m)?)?;
    m.add_function(wrap_pyfunction!(gpu_product_workspace, m)?)?;
    m.add_function(wrap_pyfunction!(shim_schemas, m)?)
}
