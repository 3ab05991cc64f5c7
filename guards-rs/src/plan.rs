//! The native executor of a compiled graph: `_native.Plan`.
//!
//! In: an `ir.plan.Plan` (`build.rs` compiles it).  Out: `Plan::run`, which executes the steps through torch's C ABI
//! and gives the outputs as Python objects; no Python runs, except for operators that the C ABI cannot call.
//!
//! Buffers that only kernels see need no tensor: they are offsets into one scratch block a call and device (`arena.rs`).  The GIL
//! is released from the first step with much work on, until Python is needed again; what other code may do to the tensors
//! of a run meanwhile is the matter of `pins.rs`.  A plan is immutable: any number of threads may run it at once.

mod arena;
mod argument;
mod aten;
mod build;
mod by_python;
mod by_shim;
mod by_stack;
mod launch;
mod object;
mod pins;
pub mod real;
mod shared;
mod shims;
pub mod size;

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;
use smallvec::{smallvec, SmallVec};
use std::time::Instant;

use crate::ffi::aten::pytype::Taken;
use crate::ffi::aten::{
    self as torch, BelowAutograd, Counted, Device, Failure, Gil, Handle, KernelFn, Object, Outcome, Scratch, Tensor,
    Unwrapped,
};
use crate::ffi::Obj;
use crate::handed;
use crate::hook::paused;
use crate::watch::{eye, Eye, Range};
use arena::{Block, Room};
use aten::Aten;
use launch::Launch;
use pins::Pins;
use real::Real;
use size::{Dims, Numbers, Size, FLOAT, NUMBER};

/// Work (elements) from which the GIL is released: below, handing it over costs more than the work.
const RELEASE_WORK: u64 = 20_000;
/// Plans up to this many slots keep their frame on the stack.
const SMALL: usize = 32;

/// One step, ready to run.
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
    /// A buffer without a tensor whose size a call tells, in a part of the host's block.
    Room {
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
    /// A view that only kernels see: an address.
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
    Aten(Box<Aten>),
    /// An operator's result as kernels read it: a copy, where it is laid out otherwise.
    Expect {
        slot: usize,
        shape: Dims,
        stride: Dims,
        dtype: i32,
        device: Device,
    },
    /// The tensors' versions count a write.
    CountVersions(Box<[usize]>),
    Free(Box<[usize]>),
    CopyInto {
        target: usize,
        source: usize,
    },
    /// A float made of symbols.
    Compute(Real),
}

/// Reinterpretation of a storage as another dtype.
struct Cast {
    dtype: i32,
    itemsize: i64,
    /// Views the flat storage as the dtype.
    view: torch::StorageCast,
}

enum Output {
    Input(usize),
    Const(Py<PyAny>),
    /// A number made of sizes.
    Number(Size),
    /// The float at a position of the environment.
    Float(usize),
    /// The position of a tensor that the plan holds.
    Constant(usize),
    /// A tensor made by the plan; `keep`: a later output returns the same object.
    Slot {
        slot: usize,
        keep: bool,
    },
    /// The object of an earlier output.
    Again(usize),
}

/// A tensor that the plan holds.  Held as an object only, so that the garbage collector sees all of its references.
struct Constant {
    slot: usize,
    object: Py<PyAny>,
}

pub struct Plan {
    pub name: String,
    n_inputs: usize,
    n_slots: usize,
    steps: Vec<Step>,
    /// What each step is, for messages.
    labels: Vec<String>,
    outputs: Vec<Output>,
    constants: Vec<Constant>,
    symbols: Vec<(usize, i64)>,
    /// Names of the environment's words, and whether they are floats.
    words: Vec<(String, bool)>,
    /// Inputs that a step reads; the others are at most returned, and may be anything.
    reads_input: Vec<bool>,
    /// For each step the inputs that no later step reads and no output is.
    ends: Vec<Box<[usize]>>,
    /// Slots whose address kernels need.
    wants_ptr: Vec<bool>,
    /// The last step that reads each slot.
    last: Vec<usize>,
    /// Inputs that steps read, and constants.
    outside: Box<[usize]>,
    /// Whether a step reads a tensor itself, not an address alone.
    reads_tensors: bool,
    /// Scratch of the host, then of each device that needs some.
    blocks: Vec<Block>,
    /// Behind the static part of the host's, one after the other.
    rooms: Vec<Room>,
    exclusive: shared::Exclusive,
    /// Whether a step may run Python code: an operator.
    may_run_python: bool,
    source: Py<PyAny>,
}

/// What a slot holds during a run.
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
    /// Where each room starts.
    rooms: &'a [usize],
    gil: Gil<'py>,
    /// Behind `gil`, so that it is dropped with the GIL held.
    pins: Pins,
    /// The step that runs, or is next.
    next: usize,
    /// Where each block of scratch starts.
    blocks: &'a [usize],
    threads: Option<i32>,
    /// The stream of the device that the last kernel of a GPU ran on.
    stream: Option<(i32, usize)>,
    room: (Numbers, Numbers),
}

impl Plan {
    /// One word a step: how it runs.
    fn routes(&self) -> Vec<String> {
        let route = |step: &Step| match step {
            Step::Alloc { .. } => "alloc",
            Step::Place { .. } => "place",
            Step::Room { .. } => "room",
            Step::View { .. } => "view",
            Step::Shift { .. } => "shift",
            Step::Kernel { .. } => "kernel",
            Step::Launch(_) => "launch",
            Step::Aten(call) => call.route(),
            Step::Expect { .. } => "expect",
            Step::CountVersions(_) => "count_versions",
            Step::Free(_) => "free",
            Step::CopyInto { .. } => "copy",
            Step::Compute(_) => "compute",
        };
        self.steps.iter().map(|step| route(step).to_owned()).collect()
    }

    /// Runs the plan; hands the outputs to `sink` in order.  `taken`: who owns the inputs, when each of them may go after
    /// its last use.
    fn run_on<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Object<'_>],
        taken: Option<&Taken>,
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
        taken: Option<&Taken>,
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

    /// Whether a call's outcome depends on the input: else anything may be passed in its place.
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
        (inputs, taken): (&[Object<'_>], Option<&Taken>),
        slots: &mut [Slot],
        ptrs: &mut [usize],
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        let is_odd = self.bind(py, inputs, slots, ptrs)?;
        if let Some(eager) = self.exclusive.instead(&slots[..self.n_inputs]) {
            return paused(|| shared::run_eager(self, py, eager, inputs, sink));
        }
        let mut env = self.environment(py, inputs, slots)?;
        let mut room = (Numbers::new(), Numbers::new());
        let (rooms, bytes) = self.room_starts(&env, &mut room).map_err(|Failure(text)| self.unfit(&text))?;
        let scratch = if bytes > 0 { Some(Scratch::take(bytes)?) } else { None };
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
            room,
        };
        if is_odd {
            frame.materialise().map_err(|error| self.explain_binding(error))?;
        }
        match eye() {
            None => self.run_steps(&mut frame, taken, |_, _| ())?,
            Some(eye) => self.run_steps_seen(&mut frame, taken, &eye)?,
        }
        frame.gil.acquire();
        self.finish(py, &mut frame, sink)
    }

    /// `around` is called before each step, with its position, and after it, with None.
    #[inline]
    fn run_steps(
        &self,
        frame: &mut Frame<'_, '_>,
        taken: Option<&Taken>,
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
            if let Err(error) = result {
                let py = frame.gil.acquire();
                return Err(self.explain(py, i, error));
            }
            if let (Some(taken), [_, ..]) = (taken, &*self.ends[i]) {
                frame.next = i + 1;
                pins::give_up(frame, taken, &self.ends[i])?;
            }
        }
        Ok(())
    }

    /// `run_steps` while somebody looks: a range for the graph and one for each step; a step's time is that of its call, so
    /// kernels of a GPU are started in it, not run.
    #[cold]
    #[inline(never)]
    fn run_steps_seen(&self, frame: &mut Frame<'_, '_>, taken: Option<&Taken>, eye: &Eye) -> PyResult<()> {
        frame.pin()?;
        let _graph = eye.range(|| format!("graph {}", self.name));
        let mut times = vec![0.0; self.steps.len()];
        let mut current: Option<(usize, Instant, Option<Range>)> = None;
        self.run_steps(frame, taken, |frame, begins| {
            frame.gil.acquire(); // a range begins and ends with the GIL held
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

    /// Puts inputs and constants into their slots; whether there is one without an address (`Frame::materialise`).
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

    /// Offsets in the host's block, and its bytes.
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
            StepError::Failure(Failure(text)) => self.unfit(&text),
            StepError::Python(error) => error,
        }
    }

    #[cold]
    fn unfit(&self, text: &str) -> PyErr {
        PyRuntimeError::new_err(format!("graph {}: {text}", self.name))
    }

    /// The values of the size symbols, from the inputs' shapes, or the inputs that are numbers.
    fn environment(&self, py: Python<'_>, inputs: &[Object<'_>], slots: &[Slot]) -> PyResult<Numbers> {
        let mut env = Numbers::new();
        for &(slot, dim) in &self.symbols {
            let lacks = || PyTypeError::new_err(format!("graph {}: input {slot} has no dimension {dim}", self.name));
            env.push(match dim {
                NUMBER => {
                    let number = inputs[slot].to_bound(py);
                    Obj::of(&number).exact_i64().map_or_else(|| number.extract(), Ok)?
                }
                FLOAT => inputs[slot].to_bound(py).extract::<f64>()?.to_bits() as i64,
                _ => slots[slot].handle()?.size(dim).ok_or_else(lacks)?,
            });
        }
        env.resize(self.words.len(), 0);
        Ok(env)
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
                    value.into_pyobject(py)?.into_any()
                }
                Output::Float(at) => f64::from_bits(frame.env[*at] as u64).into_pyobject(py)?.into_any(),
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
        PyRuntimeError::new_err(format!("graph {}: output {output} holds nothing at the end", self.name))
    }

    /// Says in which step of which graph an error arose; an operator's exception keeps its type and message.
    #[cold]
    fn explain(&self, py: Python<'_>, step: usize, error: StepError) -> PyErr {
        let place = format!("graph {}, step {step} ({})", self.name, self.labels[step]);
        match error {
            StepError::Failure(Failure(text)) if matches!(self.steps[step], Step::Alloc { .. }) => {
                self.note(py, step, &place, PyRuntimeError::new_err(text))
            }
            StepError::Failure(Failure(text)) => PyRuntimeError::new_err(format!("{place}: {text}")),
            StepError::Python(error) => self.note(py, step, &place, error),
        }
    }

    /// A note is an extra: an exception that takes none is raised as it is.
    fn note(&self, py: Python<'_>, step: usize, place: &str, error: PyErr) -> PyErr {
        let told = (self.source.bind(py), step, format!("in the compiled {place}"), error.value(py));
        drop(handed::STEP_FAILED.bound(py).and_then(|tell| tell.call1(told)));
        error
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (inputs, steps, outputs) = (self.n_inputs, self.steps.len(), self.outputs.len());
        write!(f, "<Plan {}: {inputs} inputs, {steps} steps, {outputs} outputs>", self.name)
    }
}

enum StepError {
    Failure(Failure),
    Python(PyErr),
}

impl From<Failure> for StepError {
    fn from(failure: Failure) -> Self {
        StepError::Failure(failure)
    }
}

impl From<PyErr> for StepError {
    fn from(error: PyErr) -> Self {
        StepError::Python(error)
    }
}

/// The exception that a kernel's code stands for: a row of `ir.plan.KERNEL_ERRORS`.
#[cold]
fn kernel_error(py: Python<'_>, code: i64) -> PyErr {
    let row = || -> PyResult<PyErr> {
        let table = handed::KERNEL_ERRORS.bound(py)?;
        let (class, text) = table.get_item(code)?.extract::<(Bound<'_, PyType>, String)>()?;
        Ok(PyErr::from_type(class, text))
    };
    row().unwrap_or_else(|_| PyRuntimeError::new_err(format!("a kernel returned the unknown error code {code}")))
}

/// An operator's result that no kernel can read.
#[cold]
fn other_sizes(py: Python<'_>, given: Vec<i64>, expected: &[i64]) -> PyErr {
    let text = || -> PyResult<String> {
        let form = handed::OTHER_SIZES.bound(py)?;
        form.call_method1("format", (given, expected.to_vec()))?.extract()
    };
    text().map_or_else(|error| error, PyRuntimeError::new_err)
}

/// A write into an inference tensor elsewhere than in inference mode.
#[cold]
fn inference_tensor(py: Python<'_>) -> PyErr {
    let text = || handed::INFERENCE_TENSOR.bound(py)?.extract::<String>();
    text().map_or_else(|error| error, PyRuntimeError::new_err)
}

impl Slot {
    fn of(tensor: Unwrapped) -> Slot {
        match tensor {
            Unwrapped::Borrowed(handle) => Slot::Borrowed(handle),
            Unwrapped::Owned(tensor) => Slot::Owned(tensor),
        }
    }

    fn handle(&self) -> Outcome<Handle> {
        match self {
            Slot::Borrowed(handle) => Ok(*handle),
            Slot::Owned(tensor) => Ok(tensor.handle()),
            Slot::Empty => Err(Failure("a slot is read that holds no tensor".into())),
        }
    }

    /// The address of its first element; None where its values are not those of its memory.
    #[inline]
    fn dense_address(&self) -> Outcome<Option<usize>> {
        let handle = self.handle()?;
        handle.is_dense().then(|| handle.data_ptr()).transpose()
    }

    /// The same, where values that are not those of its memory get some.
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
        match step {
            Step::Alloc { slot, shape, stride, dtype, device } => {
                let sizes = shape.resolve(self.env, &mut self.room.0)?;
                let strides = stride.resolve(self.env, &mut self.room.1)?;
                let tensor = Tensor::empty_strided(sizes, strides, *dtype, *device)?;
                self.fill(*slot, tensor)?;
            }
            Step::Place { slot, block, offset } => self.ptrs[*slot] = self.blocks[*block] + offset,
            Step::Room { slot, room } => {
                self.ptrs[*slot] = self.blocks[0] + self.rooms[*room];
            }
            Step::Shift { slot, base, bytes } => self.ptrs[*slot] = self.ptrs[*base] + bytes,
            Step::View { slot, base, shape, stride, offset, dtype } => {
                self.steady(&[*base])?;
                let tensor = self.view(*base, shape, stride, offset, dtype.as_ref())?;
                self.fill(*slot, tensor)?;
            }
            Step::Kernel { kernel, slots, scalars, work } => {
                self.release_gil_for(*work)?;
                self.launch(*kernel, slots, scalars)?;
            }
            Step::Launch(launch) => self.start(launch)?,
            Step::Aten(call) => call.call(self)?,
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
            Step::Free(slots) => {
                for slot in slots {
                    self.slots[*slot] = Slot::Empty;
                    self.pins.forget(*slot);
                }
            }
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
                    self.pin()?;
                    let py = self.gil.acquire();
                    real.by_python(py, &self.plan.words, self.env)?;
                }
            }
        }
        Ok(())
    }

    /// As eager does it before it writes.
    fn count_version(&mut self, slot: usize) -> Result<(), StepError> {
        match self.handle(slot)?.count_version() {
            Counted::Yes => Ok(()),
            Counted::Refused => Err(inference_tensor(self.gil.acquire()).into()),
            Counted::Unknown => {
                self.pin()?;
                let py = self.gil.acquire();
                let graph = py.import("torch.autograd.graph")?;
                graph.call_method1("increment_version", (self.object(py, slot)?,))?;
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
        // the whole storage, flat, seen as the dtype; the base's own offset counts in the new items
        let large = || Failure(format!("a view at item {offset} of a storage: the limit is 2**63 - 1"));
        let start = base.storage_offset().checked_mul(base.itemsize()?).ok_or_else(large)?;
        let flat = base.reinterpret(&[base.storage_size() / base.itemsize()?], &[1], -base.storage_offset())?;
        if start % cast.itemsize != 0 {
            return Err(Failure(format!(
                "a view starts at byte {start}, which is no multiple of {} bytes",
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

    /// A slot as a Python tensor: the caller's own object where the slot is an input.
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

/// `_native.torch_routes()`: which way each capability of the loaded torch is used.
#[pyfunction]
fn torch_routes(py: Python<'_>) -> PyResult<std::collections::BTreeMap<&'static str, &'static str>> {
    crate::tensor_view::ready(py)?;
    Ok(torch::api()?.routes().into_iter().collect())
}

/// `_native.force_slow_routes(on)`: tests use the documented fallbacks of wrapping and unwrapping.
#[pyfunction]
fn force_slow_routes(on: bool) {
    torch::force_slow(on);
}

/// `_native.kind_of(tensor)`: 0 where its values are its memory, 1 where they are that negated or conjugated, 2 for any other
/// (sparse, without memory, ...).
#[pyfunction]
fn kind_of(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<u8> {
    crate::tensor_view::ready(py)?;
    Object::from_bound(tensor).tensor(py)?;
    Ok(crate::tensor_view::kind_of(Obj::of(tensor))?)
}

/// `_native.shim_schemas()`: the operators that are called without the dispatcher, by schema.
#[pyfunction]
fn shim_schemas() -> Vec<&'static str> {
    shims::schemas()
}

/// `_native.use_gpu_driver(path)`: plans made from now on start their kernels through another library than `libcuda.so.1`
/// (None: through that one).
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
    m.add_function(wrap_pyfunction!(kind_of, m)?)?;
    m.add_function(wrap_pyfunction!(shim_schemas, m)?)
}
