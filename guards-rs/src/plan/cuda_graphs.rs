//! CUDA graphs of a plan: one call of the driver replays all kernels of a call.
//!
//! In: a policy (`runtime.cuda_graphs.CudaGraphs`), which decides what is recorded, and records it.  Out:
//! `Plan::replay`, which finds the recording that fits a call and starts it.  Python runs only if no recording fits.
//!
//! A recording has fixed addresses.  It fits a call on three conditions:
//! - stream and symbols are the recorded ones;
//! - each input lies at its recorded address, or is copied into memory of the recording;
//! - the outputs of the last replay in the recording's pool are free.
//!
//! An output is a new tensor on a storage of the recording.  The storage is free if only the recording refers to it: so
//! no tensor, view or saved tensor of the caller is ever overwritten.  Recordings of one pool share memory.  By the
//! third condition, only the one that was replayed last has outputs in use.

use std::cell::Cell;
use std::rc::Rc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::{inference_tensor, Output, Plan, Slot};
use crate::ffi::aten::{BelowAutograd, Object, Outcome, Tensor, UnwrappedTensor, VersionCount};
use crate::ffi::cuda::{self, Graph};
use crate::ffi::object::import;
use crate::ffi::sync::GilCell;
use crate::ffi::{Obj, Owned, Res};
use crate::hook_state::paused;

/// The result of an attempt to replay.  `Asked`: the policy ran, and the plan's steps have to run.
pub enum Replay {
    Done,
    No,
    Asked,
}

/// The recordings of a plan, and their policy.
pub struct Graphs {
    policy: Py<PyAny>,
    device: i32,
    state: GilCell<State>,
}

#[derive(Default)]
struct State {
    /// The policy records nothing any more.
    off: bool,
    all: Vec<Rc<Recording>>,
    /// For each pool: the recording that was replayed last.
    last: Vec<Option<Rc<Recording>>>,
}

enum Input {
    /// No step reads it.
    Any,
    At(usize),
    Copied {
        into: Tensor,
        sizes: Vec<i64>,
        strides: Vec<i64>,
    },
}

enum Recorded {
    Tensor { tensor: Tensor, sizes: Vec<i64>, strides: Vec<i64> },
    Object(Owned),
}

/// A storage that outputs are on.  The recording itself holds a reference for each of these outputs.
struct Watched {
    tensor: Tensor,
    storage: usize,
    address: usize,
    outputs: Vec<usize>,
}

/// A `runtime.cuda_graphs.Recording`, ready to replay.
struct Recording {
    object: Owned,
    /// None: `Recording.replay` is called.
    graph: Option<Graph>,
    key: Box<[i64]>,
    stream: usize,
    pool: usize,
    inputs: Box<[Input]>,
    outputs: Box<[Recorded]>,
    watched: Vec<Watched>,
    /// Inputs whose versions a call counts, once for each write.
    counted: Box<[usize]>,
    /// Per output: whether calls get a copy.  The policy changes it when it finds an output in use.
    copied: GilCell<Vec<bool>>,
    /// A replay has begun and has not created its outputs yet.  Meanwhile another thread may take the GIL.
    begun: Cell<bool>,
}

impl Graphs {
    /// None for the policy None.
    pub fn of(policy: &Bound<'_, PyAny>) -> PyResult<Option<Graphs>> {
        if policy.is_none() {
            return Ok(None);
        }
        let device = policy.getattr("device")?.extract()?;
        Ok(Some(Graphs { policy: policy.clone().unbind(), device, state: GilCell::default() }))
    }

    pub fn policy(&self) -> &Py<PyAny> {
        &self.policy
    }

    fn find(&self, py: Python<'_>, key: &[i64], stream: usize, slots: &[Slot]) -> Option<Rc<Recording>> {
        self.state.read(py, |state| {
            let usable = |r: &&Rc<Recording>| r.fits(key, stream, slots) && state.is_free(r.pool);
            state.all.iter().find(usable).cloned()
        })
    }

    /// Calls `policy.miss`, and takes over the recordings that it keeps.
    fn ask(&self, py: Python<'_>, plan: &Plan, inputs: &[Object<'_>], key: &[i64], stream: usize) -> PyResult<()> {
        let busy = self.state.read(py, State::busy);
        let inputs = inputs.iter().map(|input| Owned::of_py(input.to_bound(py).unbind())).collect();
        let inputs = Owned::list_from(inputs)?.into_bound(py);
        let policy = self.policy.bind(py);
        let keeps = policy.call_method1("miss", (inputs, key.to_vec(), stream, busy))?.is_truthy()?;
        let known = self.state.read(py, |state| state.all.clone());
        let (mut all, mut pools) = (Vec::new(), 0);
        for object in policy.getattr("recordings")?.try_iter()? {
            let object = object?;
            let found = known.iter().find(|r| r.object.get().id() == Obj::of(&object).id());
            let recording = match found {
                Some(recording) => recording.clone(),
                None => Rc::new(Recording::build(&object, plan, self.device)?),
            };
            recording.read_copied(&object)?;
            pools = pools.max(recording.pool + 1);
            all.push(recording);
        }
        let dropped = self.state.with(py, |state| {
            state.off = !keeps;
            state.last.resize(pools.max(state.last.len()), None);
            std::mem::replace(&mut state.all, all)
        });
        drop((known, dropped)); // outside of the cell: the end of a recording runs Python code
        Ok(())
    }
}

impl State {
    /// Whether a recording of the pool can be replayed: the outputs of the last replay are free.
    fn is_free(&self, pool: usize) -> bool {
        self.last.get(pool).and_then(Option::as_ref).is_none_or(|last| last.is_free())
    }

    /// The pools with outputs in use, and these outputs.
    fn busy(&self) -> Vec<(usize, Vec<usize>)> {
        let last = self.last.iter().enumerate().filter_map(|(pool, last)| Some((pool, last.as_ref()?)));
        last.filter(|(_, last)| !last.is_free()).map(|(pool, last)| (pool, last.in_use())).collect()
    }
}

impl Recording {
    fn build(object: &Bound<'_, PyAny>, plan: &Plan, device: i32) -> PyResult<Recording> {
        let py = object.py();
        let wrong = |what: &str| PyValueError::new_err(format!("graph {}: a recording with {what}", plan.name));
        let executable = object.getattr("executable")?.extract::<usize>()?;
        let inputs =
            object.getattr("inputs")?.try_iter()?.map(|v| Input::build(&v?)).collect::<PyResult<Box<[_]>>>()?;
        let mut outputs = Vec::new();
        let mut watched: Vec<Watched> = Vec::new();
        for value in object.getattr("outputs")?.try_iter()? {
            let value = value?;
            let made = plan.outputs.get(outputs.len()).is_some_and(|output| matches!(output, Output::Slot { .. }));
            if !made {
                outputs.push(Recorded::Object(Obj::of(&value).own()));
                continue;
            }
            let tensor = owned(Object::from_bound(&value).tensor(py)?)?;
            let handle = tensor.handle();
            match watched.iter_mut().find(|w| w.storage == handle.storage()) {
                Some(known) => known.outputs.push(outputs.len()),
                None => watched.push(Watched {
                    tensor: handle.to_owned()?,
                    storage: handle.storage(),
                    address: handle.data_ptr()?,
                    outputs: vec![outputs.len()],
                }),
            }
            outputs.push(Recorded::Tensor { sizes: handle.sizes(), strides: handle.strides()?, tensor });
        }
        if inputs.len() != plan.n_inputs || outputs.len() != plan.outputs.len() {
            return Err(wrong(&format!("{} inputs and {} outputs", inputs.len(), outputs.len())));
        }
        let counted = object.getattr("counted")?.extract::<Vec<usize>>()?;
        if let Some(input) = counted.iter().find(|input| !plan.reads_input.get(**input).is_some_and(|read| *read)) {
            return Err(wrong(&format!("a write of input {input}, which no step reads")));
        }
        Ok(Recording {
            graph: (executable != 0).then(|| cuda::driver()?.graph(executable, device)).transpose()?,
            key: object.getattr("key")?.extract::<Vec<i64>>()?.into(),
            stream: object.getattr("stream")?.extract()?,
            pool: object.getattr("pool")?.extract()?,
            object: Obj::of(object).own(),
            inputs,
            outputs: outputs.into(),
            watched,
            counted: counted.into(),
            copied: GilCell::default(),
            begun: Cell::new(false),
        })
    }

    fn fits(&self, key: &[i64], stream: usize, slots: &[Slot]) -> bool {
        self.stream == stream
            && *self.key == *key
            && self.inputs.iter().zip(slots).all(|(input, slot)| input.fits(slot).unwrap_or(false))
    }

    fn read_copied(&self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let chosen = object.getattr("copied")?;
        let copied = (0..self.outputs.len()).map(|output| chosen.contains(output)).collect::<PyResult<Vec<bool>>>()?;
        drop(self.copied.replace(object.py(), copied));
        Ok(())
    }

    /// The outputs whose storages are referred to from outside.
    fn in_use(&self) -> Vec<usize> {
        self.watched.iter().filter(|w| !w.is_free()).flat_map(|w| w.outputs.iter().copied()).collect()
    }

    /// Whether no one but the recording refers to the storages of its outputs, and whether they have their memory.
    fn is_free(&self) -> bool {
        !self.begun.get() && self.watched.iter().all(Watched::is_free)
    }

    fn launch(&self, stream: usize) -> PyResult<()> {
        match &self.graph {
            Some(graph) => Ok(graph.launch(stream)?),
            None => {
                self.object.attr(c"replay")?.call(&[], None)?;
                Ok(())
            }
        }
    }
}

impl Watched {
    fn is_free(&self) -> bool {
        let handle = self.tensor.handle();
        handle.storage_holders() == Some(self.outputs.len() as u64)
            && handle.data_ptr().is_ok_and(|address| address == self.address)
    }
}

impl Input {
    fn build(value: &Bound<'_, PyAny>) -> PyResult<Input> {
        if value.is_none() {
            return Ok(Input::Any);
        }
        if let Ok(address) = value.extract::<usize>() {
            return Ok(Input::At(address));
        }
        let into = owned(Object::from_bound(value).tensor(value.py())?)?;
        let (sizes, strides) = (into.handle().sizes(), into.handle().strides()?);
        Ok(Input::Copied { into, sizes, strides })
    }

    fn fits(&self, slot: &Slot) -> Outcome<bool> {
        match self {
            Input::Any => Ok(true),
            Input::At(address) => Ok(slot.dense_address()? == Some(*address)),
            Input::Copied { sizes, strides, .. } => {
                let handle = slot.handle()?;
                Ok(handle.is_dense() && handle.has_sizes(sizes) && handle.has_strides(sizes, strides))
            }
        }
    }
}

fn owned(tensor: UnwrappedTensor) -> Outcome<Tensor> {
    match tensor {
        UnwrappedTensor::Borrowed(handle) => handle.to_owned(),
        UnwrappedTensor::Owned(tensor) => Ok(tensor),
    }
}

impl Plan {
    /// Runs the call by a recording, if one fits.
    pub(super) fn replay<'py>(
        &self,
        py: Python<'py>,
        inputs: &[Object<'_>],
        env: &[i64],
        slots: &[Slot],
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<Replay> {
        let Some(graphs) = &self.graphs else { return Ok(Replay::No) };
        if graphs.state.read(py, |state| state.off) {
            return Ok(Replay::No);
        }
        let driver = cuda::driver()?;
        let stream = driver.current_stream(graphs.device)?;
        if driver.captures(graphs.device, stream) {
            return Ok(Replay::No); // the caller records a graph of its own, from the plan's steps
        }
        let (key, slots) = (&env[..self.symbols.len()], &slots[..self.n_inputs]);
        if let Some(found) = graphs.find(py, key, stream, slots) {
            for &slot in &*found.counted {
                count_version(py, inputs, slots, slot)?;
            }
            self.start(py, graphs, found, inputs, slots, sink)?;
            return Ok(Replay::Done);
        }
        paused(|| graphs.ask(py, self, inputs, key, stream))?;
        let Some(made) = graphs.find(py, key, stream, slots) else { return Ok(Replay::Asked) };
        self.start(py, graphs, made, inputs, slots, sink)?; // the recorded run has counted the versions
        Ok(Replay::Done)
    }

    fn start<'py>(
        &self,
        py: Python<'py>,
        graphs: &Graphs,
        recording: Rc<Recording>,
        inputs: &[Object<'_>],
        slots: &[Slot],
        sink: &mut dyn FnMut(Bound<'py, PyAny>),
    ) -> PyResult<()> {
        let begun = Begun::of(&recording);
        let before = graphs.state.with(py, |state| state.last[recording.pool].replace(recording.clone()));
        let mut made = recording.replayed(py, slots)?.into_iter();
        drop(begun);
        drop(before); // outside of the cell, as in `ask`
        let mut kept: Vec<(usize, Bound<'py, PyAny>)> = Vec::new();
        for (i, (output, recorded)) in self.outputs.iter().zip(&recording.outputs).enumerate() {
            let object = match (output, recorded) {
                (Output::Input(slot), _) => inputs[*slot].to_bound(py),
                (Output::Again(first), _) => {
                    kept.iter().find(|(j, _)| j == first).map(|(_, o)| o.clone()).ok_or_else(|| self.empty(i))?
                }
                (_, Recorded::Object(object)) => object.clone().into_bound(py),
                (_, Recorded::Tensor { .. }) => made.next().ok_or_else(|| self.empty(i))?.into_py(py)?,
            };
            if matches!(output, Output::Slot { keep: true, .. }) {
                kept.push((i, object.clone()));
            }
            sink(object);
        }
        Ok(())
    }
}

/// While this value exists, no other call replays the recording.
struct Begun<'a>(&'a Cell<bool>);

impl Begun<'_> {
    fn of(recording: &Recording) -> Begun<'_> {
        recording.begun.set(true);
        Begun(&recording.begun)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Recording {
    /// Replays, and returns the tensors of the outputs.
    fn replayed(&self, py: Python<'_>, slots: &[Slot]) -> PyResult<SmallVec<[Tensor; 4]>> {
        let _below = BelowAutograd::enter(true);
        for (input, slot) in self.inputs.iter().zip(slots) {
            if let Input::Copied { into, .. } = input {
                into.handle().copy_from(slot.handle()?)?;
            }
        }
        self.launch(self.stream)?;
        let tensor = |(recorded, copied): (&Recorded, &bool)| match recorded {
            Recorded::Object(_) => None,
            Recorded::Tensor { tensor, .. } if *copied => Some(tensor.handle().copied()),
            Recorded::Tensor { tensor, sizes, strides } => Some(tensor.handle().reinterpret(sizes, strides, 0)),
        };
        let made = |copied: &Vec<bool>| self.outputs.iter().zip(copied).filter_map(tensor).collect::<Outcome<_>>();
        Ok(self.copied.read(py, made)?)
    }
}

/// Counts a write of an input, as the recorded step does.
fn count_version(py: Python<'_>, inputs: &[Object<'_>], slots: &[Slot], slot: usize) -> PyResult<()> {
    match slots[slot].handle()?.count_version() {
        VersionCount::Yes => Ok(()),
        VersionCount::Refused => Err(inference_tensor(py)),
        VersionCount::Unknown => {
            let count = || -> Res<Owned> {
                let count = import(c"torch.autograd.graph")?.attr(c"increment_version")?;
                count.call(&[Obj::of(&inputs[slot].to_bound(py))], None)
            };
            count()?;
            Ok(())
        }
    }
}

/// `_native.storage_holders(tensor)`: an id of the tensor's storage, and the number of references to it.  None in place
/// of the number if this torch's storages cannot be counted.
#[pyfunction]
pub fn storage_holders(py: Python<'_>, tensor: &Bound<'_, PyAny>) -> PyResult<(usize, Option<u64>)> {
    crate::tensor_view::ready(py)?;
    let unwrapped =
        Object::from_bound(tensor).tensor(py).map_err(|_| PyTypeError::new_err("expected a torch.Tensor"))?;
    let tensor = owned(unwrapped)?;
    Ok((tensor.handle().storage(), tensor.handle().storage_holders()))
}
