//! Compiles an `ir.plan.Plan` into a native `Plan`.
//!
//! In: the dataclass.  Out: steps ready to run.  Buffers that only kernels use get a place in the scratch block; views
//! that only kernels use become addresses.  A plan that reads a slot before the slot is filled is rejected here.

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::ffi::OsString;

use super::arena::{self, Block, DynamicBlock, Lifetime};
use super::argument::{device_code, torch_code, Reader};
use super::aten::Aten;
use super::gpu_product::GpuProduct;
use super::launch::Launch;
use super::launch_batch::Recordings;
use super::pack::Pack;
use super::real::Real;
use super::shared::Exclusive;
use super::size::{Dims, Size, Symbols, FLOAT, NUMBER};
use super::{Cast, Constant, Output, Plan, Step};
use crate::ffi::aten::{self as torch, code_of, extent, Device, KernelFn, Library, Object, StorageCast};

const NEVER: usize = usize::MAX;
/// Far more slots than a graph has.  Tables indexed by slot are allocated without a check for available memory.
const MOST_SLOTS: usize = 1 << 24;
/// A larger buffer (in bytes) of a GPU is a tensor.  Its kernel takes longer than an allocation, and it is better to
/// free its memory at once.
const LARGE: usize = 8 << 20;
/// GPU buffers start at multiples of this, as in torch's allocator.
const DEVICE_ALIGN: usize = 256;

impl Plan {
    pub fn build(plan: &Bound<'_, PyAny>) -> PyResult<Plan> {
        let py = plan.py();
        crate::tensor_view::ready(py)?;
        let name = plan.getattr("name")?.extract::<String>()?;
        let in_graph = |error: PyErr| PyValueError::new_err(format!("graph {name}: {}", error.value(py)));
        let n_slots = plan.getattr("n_slots")?.extract()?;
        if n_slots > MOST_SLOTS {
            return Err(in_graph(PyValueError::new_err(format!("{n_slots} slots, the limit is {MOST_SLOTS}"))));
        }
        let reader = Reader::new(py, symbols(plan)?)?;
        let constants = constants(plan)?;
        let mut builder = Builder {
            reader,
            n_inputs: plan.getattr("n_inputs")?.extract()?,
            n_slots,
            plan: plan.clone(),
            library: library(plan)?,
            itemsizes: Vec::new(),
        };
        builder.itemsizes = vec![None; builder.n_slots];
        let mut steps = Vec::new();
        let mut labels = Vec::new();
        for step in plan.getattr("steps")?.try_iter()? {
            let step = step?;
            let (built, label) = builder.step(&step).map_err(|error| {
                let text = format!("graph {name}, step {} ({step}): {}", steps.len(), error.value(py));
                if error.is_instance_of::<PyRuntimeError>(py) {
                    PyRuntimeError::new_err(text)
                } else {
                    PyValueError::new_err(text)
                }
            })?;
            steps.push(built);
            labels.push(label);
        }
        let output_values: Vec<Bound<'_, PyAny>> = plan.getattr("outputs")?.try_iter()?.collect::<PyResult<_>>()?;
        let uses =
            SlotUses::of(&steps, &output_values, builder.n_slots, builder.n_inputs, &constants).map_err(in_graph)?;
        let outputs = outputs(&output_values, builder.n_inputs, &constants, &builder.reader)?;
        let mut reads_input = uses.read[..builder.n_inputs].to_vec();
        for &(slot, dim) in &builder.reader.symbols.origins {
            let unknown =
                || in_graph(PyValueError::new_err(format!("a size symbol names input {slot}, which does not exist")));
            *reads_input.get_mut(slot).ok_or_else(unknown)? |= dim != NUMBER && dim != FLOAT;
        }
        let (uses, blocks, rooms) = lower(&mut steps, uses, &builder.itemsizes)?;
        let mut ends = vec![Vec::new(); steps.len()];
        for slot in (0..builder.n_inputs).filter(|&slot| uses.read[slot]) {
            if !outputs.iter().any(|output| matches!(output, Output::Input(at) if *at == slot)) {
                ends[uses.last[slot]].push(slot);
            }
        }
        let tensors =
            |step: &Step| matches!(step, Step::Aten(_) | Step::Pack(_) | Step::View { .. } | Step::CopyInto { .. });
        let read = (0..builder.n_inputs).filter(|&slot| reads_input[slot]);
        let outside = read.chain(constants.iter().map(|constant| constant.slot)).collect();
        let python =
            |step: &Step| matches!(step, Step::Aten(_) | Step::Pack(_) | Step::CountVersions(_) | Step::Compute(_));
        Ok(Plan {
            outside,
            reads_tensors: steps.iter().any(tensors),
            last: uses.last,
            may_run_python: steps.iter().any(python),
            n_inputs: builder.n_inputs,
            n_slots: builder.n_slots,
            symbols: builder.reader.symbols.origins.clone(),
            words: builder.reader.symbols.words(),
            source: plan.clone().unbind(),
            name,
            steps,
            labels,
            outputs,
            constants,
            reads_input,
            ends: ends.into_iter().map(Vec::into_boxed_slice).collect(),
            wants_ptr: uses.by_kernel,
            blocks,
            rooms,
            exclusive: Exclusive::default(),
            graphs: None,
            batches: plan.getattr("batches_launches")?.extract()?,
            recordings: Recordings::default(),
        })
    }
}

/// `Plan.symbols` (name -> (input, dimension)), followed by the symbols that steps compute.
fn symbols(plan: &Bound<'_, PyAny>) -> PyResult<Symbols> {
    let mut symbols = Symbols::default();
    for (name, origin) in plan.getattr("symbols")?.cast_into::<PyDict>()? {
        let origin = origin.extract::<(usize, i64)>()?;
        symbols.add(name.extract()?, origin.1 == FLOAT);
        symbols.origins.push(origin);
    }
    for step in plan.getattr("steps")?.try_iter()? {
        let step = step?;
        if step.get_type().name()? == "Compute" {
            symbols.add(step.getattr("name")?.extract()?, true);
        }
    }
    Ok(symbols)
}

fn constants(plan: &Bound<'_, PyAny>) -> PyResult<Vec<Constant>> {
    let mut constants = Vec::new();
    for (slot, object) in plan.getattr("constants")?.cast_into::<PyDict>()? {
        Object::from_bound(&object).tensor(plan.py())?; // rejects objects that are no tensors
        constants.push(Constant { slot: slot.extract()?, object: object.unbind() });
    }
    Ok(constants)
}

/// The library of host kernels.
fn library(plan: &Bound<'_, PyAny>) -> PyResult<Option<Library>> {
    let path = plan.getattr("library")?.extract::<Option<OsString>>()?;
    Ok(path.map(Library::open).transpose()?)
}

fn outputs(
    values: &[Bound<'_, PyAny>],
    n_inputs: usize,
    constants: &[Constant],
    reader: &Reader<'_>,
) -> PyResult<Vec<Output>> {
    let mut first: Vec<(usize, usize)> = Vec::new(); // (slot, output)
    let mut outputs: Vec<Output> = Vec::new();
    for (i, value) in values.iter().enumerate() {
        if let Ok(tuple) = value.cast::<PyTuple>() {
            let value = tuple.get_item(0)?;
            outputs.push(match (value.is_instance(&reader.expr)?, reader.float(&value)?) {
                (true, _) => Output::Number(reader.symbols.compile(&value)?),
                (_, Some(at)) => Output::Float(at),
                _ => Output::Const(value.unbind()),
            });
            continue;
        }
        let slot = value.extract::<usize>()?;
        let constant = constants.iter().position(|c| c.slot == slot);
        let output = match (constant, first.iter().find(|(s, _)| *s == slot)) {
            (Some(constant), _) => Output::Constant(constant),
            _ if slot < n_inputs => Output::Input(slot),
            (_, Some((_, earlier))) => {
                if let Output::Slot { keep, .. } = &mut outputs[*earlier] {
                    *keep = true;
                }
                Output::Again(*earlier)
            }
            _ => {
                first.push((slot, i));
                Output::Slot { slot, keep: false }
            }
        };
        outputs.push(output);
    }
    Ok(outputs)
}

struct Builder<'py> {
    reader: Reader<'py>,
    n_inputs: usize,
    n_slots: usize,
    plan: Bound<'py, PyAny>,
    library: Option<Library>,
    /// Bytes of an item, for slots whose dtype the plan states.
    itemsizes: Vec<Option<usize>>,
}

impl<'py> Builder<'py> {
    fn step(&mut self, step: &Bound<'py, PyAny>) -> PyResult<(Step, String)> {
        let class = step.get_type().name()?.to_string();
        match class.as_str() {
            "Alloc" => Ok((self.alloc(step)?, step.getattr("label")?.extract()?)),
            "View" => Ok((self.view(step)?, format!("view of slot {}", self.slot(step, "base")?))),
            "Kernel" => Ok((self.kernel(step)?, step.getattr("label")?.extract()?)),
            "Product" => Ok((self.by_engine(KernelFn::matrix_product(), step)?, step.getattr("label")?.extract()?)),
            "Convolution" => Ok((self.by_engine(KernelFn::convolution(), step)?, step.getattr("label")?.extract()?)),
            "GpuProduct" => {
                let product = GpuProduct::build(step)?;
                for slot in &product.slots {
                    self.in_range(*slot)?;
                }
                Ok((Step::GpuProduct(Box::new(product)), step.getattr("label")?.extract()?))
            }
            "Launch" => {
                let launch = Launch::build(&self.plan, &self.reader, step)?;
                for slot in &launch.slots {
                    self.in_range(*slot)?;
                }
                Ok((Step::Launch(Box::new(launch)), step.getattr("label")?.extract()?))
            }
            "Aten" => {
                let call = Aten::build(&self.reader, step)?;
                let label = call.name.clone();
                Ok((Step::Aten(Box::new(call)), label))
            }
            "Pack" => {
                let pack = Pack::build(&self.reader, step)?;
                Ok((Step::Pack(Box::new(pack)), step.getattr("label")?.extract()?))
            }
            "Expect" => {
                let label = format!("layout of slot {}", self.slot(step, "slot")?);
                let Step::Alloc { slot, shape, stride, dtype, device } = self.alloc(step)? else {
                    return Err(PyRuntimeError::new_err("alloc gives an Alloc"));
                };
                Ok((Step::Expect { slot, shape, stride, dtype, device }, label))
            }
            "CountVersions" => {
                let slots = self.slots(&step.getattr("slots")?)?;
                Ok((Step::CountVersions(slots.into()), "count versions".into()))
            }
            "Free" => Ok((Step::Free(self.slots(&step.getattr("slots")?)?.into()), "free".into())),
            "CopyInto" => {
                let (target, source) = (self.slot(step, "target")?, self.slot(step, "source")?);
                Ok((Step::CopyInto { target, source }, format!("copy slot {source} into slot {target}")))
            }
            "Compute" => {
                let name = step.getattr("name")?.extract::<String>()?;
                let into = self.reader.symbols.position(&name)?;
                let real = Real::compile(&self.reader.symbols, into, &step.getattr("value")?)?;
                Ok((Step::Compute(real), step.getattr("value")?.str()?.to_string()))
            }
            _ => Err(PyValueError::new_err(format!("a step of class {class}, expected one of ir.plan.Step"))),
        }
    }

    fn slot(&self, step: &Bound<'py, PyAny>, field: &str) -> PyResult<usize> {
        self.in_range(step.getattr(field)?.extract()?)
    }

    fn in_range(&self, slot: usize) -> PyResult<usize> {
        if slot < self.n_slots {
            return Ok(slot);
        }
        Err(PyValueError::new_err(format!("slot {slot}, but the plan has {} slots", self.n_slots)))
    }

    fn slots(&self, values: &Bound<'py, PyAny>) -> PyResult<Vec<usize>> {
        values.try_iter()?.map(|v| self.in_range(v?.extract()?)).collect()
    }

    fn alloc(&mut self, step: &Bound<'py, PyAny>) -> PyResult<Step> {
        let slot = self.slot(step, "slot")?;
        let (dtype, itemsize) = dtype_of(&step.getattr("dtype")?)?;
        self.itemsizes[slot] = Some(itemsize);
        let device = step.getattr("device")?;
        let (kind, index) = device_code(&device)?
            .ok_or_else(|| PyValueError::new_err(format!("the device {device} is unknown to torch's C ABI")))?;
        let shape = self.reader.symbols.dims(&step.getattr("shape")?)?;
        let stride = self.reader.symbols.dims(&step.getattr("stride")?)?;
        Ok(Step::Alloc { slot, shape, stride, dtype, device: Device { kind, index } })
    }

    fn view(&mut self, step: &Bound<'py, PyAny>) -> PyResult<Step> {
        let (slot, base) = (self.slot(step, "slot")?, self.slot(step, "base")?);
        let dtype = step.getattr("dtype")?;
        self.itemsizes[slot] = self.itemsizes[base];
        let mut cast = None;
        if !dtype.is_none() {
            let (dtype, itemsize) = dtype_of(&dtype)?;
            self.itemsizes[slot] = Some(itemsize);
            cast = Some(Cast { dtype, itemsize: itemsize as i64, view: StorageCast::find()? });
        }
        let shape = self.reader.symbols.dims(&step.getattr("shape")?)?;
        let stride = self.reader.symbols.dims(&step.getattr("stride")?)?;
        let offset = self.reader.symbols.compile(&step.getattr("offset")?)?;
        Ok(Step::View { slot, base, shape, stride, offset, dtype: cast })
    }

    fn kernel(&self, step: &Bound<'py, PyAny>) -> PyResult<Step> {
        let symbol = step.getattr("symbol")?.extract::<String>()?;
        let lacks = || PyValueError::new_err(format!("kernel {symbol}, but the plan has no library"));
        let kernel = self.library.as_ref().ok_or_else(lacks)?.kernel(&symbol)?;
        let scalars = self.reader.symbols.dims(&step.getattr("scalars")?)?;
        let slots = self.slots(&step.getattr("slots")?)?.into();
        Ok(Step::Kernel { kernel, slots, scalars, work: step.getattr("work")?.extract()? })
    }

    fn by_engine(&self, kernel: KernelFn, step: &Bound<'py, PyAny>) -> PyResult<Step> {
        let scalars = self.reader.symbols.dims(&step.getattr("scalars")?)?;
        let slots = self.slots(&step.getattr("slots")?)?.into();
        Ok(Step::Kernel { kernel, slots, scalars, work: step.getattr("work")?.extract()? })
    }
}

fn dtype_of(dtype: &Bound<'_, PyAny>) -> PyResult<(i32, usize)> {
    let unknown = || PyValueError::new_err(format!("the dtype {dtype} is unknown to torch's C ABI"));
    let code = torch_code(dtype, "aoti_torch_dtype_")?.ok_or_else(unknown)?;
    Ok((code, dtype.getattr("itemsize")?.extract()?))
}

/// The uses of each slot by the steps.
struct SlotUses {
    n_inputs: usize,
    /// Number of steps that fill the slot.
    filled: Vec<usize>,
    /// The first step that fills the slot, the last that reads it, the first that frees it.
    first: Vec<usize>,
    last: Vec<usize>,
    freed: Vec<usize>,
    read: Vec<bool>,
    by_kernel: Vec<bool>,
    /// Whether an operator, a copy or the caller reads the slot.  Then it must hold a tensor.
    by_tensor: Vec<bool>,
    constant: Vec<bool>,
}

impl SlotUses {
    fn of(
        steps: &[Step],
        outputs: &[Bound<'_, PyAny>],
        n: usize,
        n_inputs: usize,
        constants: &[Constant],
    ) -> PyResult<SlotUses> {
        if n_inputs > n {
            return Err(PyValueError::new_err(format!("{n_inputs} inputs, but the plan has {n} slots")));
        }
        let mut uses = SlotUses {
            n_inputs,
            filled: vec![0; n],
            first: vec![NEVER; n],
            last: vec![0; n],
            freed: vec![NEVER; n],
            read: vec![false; n],
            by_kernel: vec![false; n],
            by_tensor: vec![false; n],
            constant: vec![false; n],
        };
        let mut live = vec![false; n];
        live[..n_inputs].fill(true);
        for constant in constants {
            if constant.slot >= n || constant.slot < n_inputs {
                return Err(PyValueError::new_err(format!(
                    "a constant in slot {}, but the plan has {n} slots",
                    constant.slot
                )));
            }
            live[constant.slot] = true;
            uses.constant[constant.slot] = true;
        }
        for (i, step) in steps.iter().enumerate() {
            let (reads, fills) = step.traffic();
            if let Some(slot) = reads.iter().find(|&&slot| slot >= n || !live[slot]) {
                return Err(PyValueError::new_err(format!("step {i} reads slot {slot}, which is empty")));
            }
            for slot in reads {
                uses.last[slot] = i;
                uses.read[slot] = true;
                match step {
                    Step::Kernel { .. } | Step::Launch(_) | Step::GpuProduct(_) => uses.by_kernel[slot] = true,
                    Step::Aten(_) | Step::Pack(_) | Step::CopyInto { .. } | Step::CountVersions(_) => {
                        uses.by_tensor[slot] = true;
                    }
                    _ => {}
                }
            }
            for slot in fills {
                if slot >= n || slot < n_inputs || uses.constant[slot] {
                    return Err(PyValueError::new_err(format!(
                        "step {i} fills slot {slot}, which is an input, a constant or out of range"
                    )));
                }
                uses.filled[slot] += 1;
                uses.first[slot] = uses.first[slot].min(i);
                uses.by_tensor[slot] |= matches!(step, Step::Aten(_) | Step::Pack(_));
                live[slot] = true;
            }
            if let Step::Free(slots) = step {
                for &slot in slots.iter().filter(|&&slot| slot >= n_inputs) {
                    uses.freed[slot] = uses.freed[slot].min(i);
                    live[slot] = uses.constant[slot];
                }
            }
        }
        for (i, output) in outputs.iter().enumerate() {
            if let Ok(slot) = output.extract::<usize>() {
                if slot >= n || !live[slot] {
                    return Err(PyValueError::new_err(format!("output {i} is slot {slot}, which is empty at the end")));
                }
                uses.by_tensor[slot] = true;
            }
        }
        Ok(uses)
    }

    /// Whether exactly one step fills the slot, and the caller does not.
    fn single(&self, slot: usize) -> bool {
        self.filled[slot] == 1
    }

    fn outside(&self, slot: usize) -> bool {
        slot < self.n_inputs || self.constant[slot]
    }
}

/// Turns buffers and views that only kernels use into addresses.  Returns the updated uses, the scratch blocks of the
/// host and of each device, and the rooms.
fn lower(
    steps: &mut [Step],
    mut uses: SlotUses,
    itemsizes: &[Option<usize>],
) -> PyResult<(SlotUses, Vec<Block>, Vec<DynamicBlock>)> {
    // Views in reverse order, so that a view of a view is decided before its base.
    for i in (0..steps.len()).rev() {
        let Step::View { slot, base, offset, dtype, .. } = &steps[i] else { continue };
        let (slot, base) = (*slot, *base);
        let bytes = match (offset, itemsizes[if dtype.is_some() { slot } else { base }]) {
            (Size::Const(0), _) => Some(0),
            (Size::Const(n), Some(itemsize)) => usize::try_from(*n).ok().and_then(|n| n.checked_mul(itemsize)),
            _ => None,
        };
        let outlives_base = uses.freed[base] < uses.last[slot] && !uses.outside(base);
        let stable_base = uses.outside(base) || uses.single(base);
        match bytes {
            Some(bytes)
                if !uses.by_tensor[slot]
                    && uses.single(slot)
                    && stable_base
                    && (!outlives_base || placeable(steps, &uses, base)) =>
            {
                uses.last[base] = uses.last[base].max(uses.last[slot]);
                uses.by_kernel[base] = true;
                steps[i] = Step::Shift { slot, base, bytes };
            }
            _ => uses.by_tensor[base] = true,
        }
    }
    let byte = code_of("aoti_torch_dtype_uint8").ok_or_else(|| PyRuntimeError::new_err("this torch has no uint8"))?;
    let mut blocks = vec![Block { device: None, bytes: 0, byte }];
    for step in steps.iter() {
        let Step::Alloc { device, .. } = step else { continue };
        if on_gpu(*device) && !blocks.iter().any(|block| block.device == Some(*device)) {
            blocks.push(Block { device: Some(*device), bytes: 0, byte });
        }
    }
    for (at, block) in blocks.iter_mut().enumerate() {
        let (mut lives, mut owners) = (Vec::new(), Vec::new());
        for (i, step) in steps.iter().enumerate() {
            if let Some((slot, bytes)) = place_of(step, &uses, itemsizes, block.device) {
                lives.push(Lifetime { bytes, first: i, last: uses.last[slot].max(i) });
                owners.push((i, slot));
            }
        }
        let (offsets, total) = arena::place(&lives)?;
        block.bytes = total;
        for (&(i, slot), offset) in owners.iter().zip(offsets) {
            steps[i] = Step::Place { slot, block: at, offset };
        }
    }
    let rooms = give_rooms(steps, &uses, itemsizes);
    Ok((uses, blocks, rooms))
}

/// Turns host allocations of symbolic size that need no tensor into rooms.  On GPUs they stay tensors, because they may
/// be large.
fn give_rooms(steps: &mut [Step], uses: &SlotUses, itemsizes: &[Option<usize>]) -> Vec<DynamicBlock> {
    let mut lives = Vec::new();
    let mut owners = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        let Step::Alloc { slot, shape, stride, device, .. } = step else { continue };
        if let (false, true, true, Some(itemsize)) =
            (uses.by_tensor[*slot], uses.single(*slot), on_cpu(*device), itemsizes[*slot])
        {
            let room = DynamicBlock { shape: shape.clone(), stride: stride.clone(), itemsize: itemsize as i64 };
            lives.push((room, i, uses.last[*slot].max(i)));
            owners.push((i, *slot));
        }
    }
    let (chosen, rooms) = arena::share(lives);
    for (&(i, slot), room) in owners.iter().zip(chosen) {
        steps[i] = Step::DynamicBlock { slot, room };
    }
    rooms
}

/// The slot and bytes of an allocation that needs no tensor, on the device `wanted` (None: the host).
fn place_of(
    step: &Step,
    uses: &SlotUses,
    itemsizes: &[Option<usize>],
    wanted: Option<Device>,
) -> Option<(usize, usize)> {
    let Step::Alloc { slot, shape, stride, device, .. } = step else { return None };
    if uses.by_tensor[*slot] || !uses.single(*slot) || (wanted.is_none() && !on_cpu(*device)) {
        return None;
    }
    let bytes = storage_bytes(shape, stride, itemsizes[*slot]?)?;
    match wanted {
        None => Some((*slot, bytes)),
        // At most LARGE, so that rounding up cannot overflow.
        Some(_) if wanted == Some(*device) && bytes <= LARGE => Some((*slot, bytes.next_multiple_of(DEVICE_ALIGN))),
        Some(_) => None,
    }
}

fn on_cpu(device: Device) -> bool {
    torch::code_of("aoti_torch_device_type_cpu") == Some(device.kind)
}

fn on_gpu(device: Device) -> bool {
    torch::code_of("aoti_torch_device_type_cuda") == Some(device.kind) && device.index >= 0
}

/// Whether the slot never needs a tensor: it is a host allocation of static size, and kernels alone use it.  Its place
/// can then last as long as its views.
fn placeable(steps: &[Step], uses: &SlotUses, slot: usize) -> bool {
    let is_static = |s: &Step| {
        matches!(s, Step::Alloc { slot: at, shape, stride, device, .. }
        if *at == slot && on_cpu(*device) && shape.as_static().is_some() && stride.as_static().is_some())
    };
    // A view that is still undecided may need a tensor; the slot's Free would then end that tensor too early.
    let views = steps.iter().filter(|s| matches!(s, Step::View { base, .. } if *base == slot)).count();
    !uses.by_tensor[slot] && uses.single(slot) && views <= 1 && steps.iter().any(is_static)
}

fn storage_bytes(shape: &Dims, stride: &Dims, itemsize: usize) -> Option<usize> {
    let dims = shape.as_static()?.iter().copied().zip(stride.as_static()?.iter().copied());
    extent(dims, i64::try_from(itemsize).ok()?).ok()
}
