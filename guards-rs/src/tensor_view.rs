//! Reads tensors without Python: finds the C++ object and the layout of its metadata.
//!
//! Three levels; the probe selects the fastest that works.  `Offsets` reads words at probed offsets of the TensorImpl,
//! if several tensors agree.  `CAbi` calls torch's stable C functions.  `Slow` reads Python attributes.  `force` caps
//! the level.

use crate::ffi::aten;
use crate::ffi::object::{clear_error, import};
use crate::ffi::state::StateSymbols;
use crate::ffi::sync::GilCell;
use crate::ffi::torch::{
    has_known_version, learn_version, probe_bytes, Autograd, CAbi, Layout, RawTensor, RequiresGrad,
};
use crate::ffi::{Obj, Owned, Raised, Res};
use crate::registered_object;
use pyo3::Python;
use std::collections::HashMap;
use std::ffi::CStr;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    Slow,
    CAbi,
    Offsets,
}

/// Facts about the loaded torch.
#[derive(Clone, Copy)]
pub struct Torch {
    pub level: Level,
    /// Offset of the `at::Tensor` in the Python object.  The handle of the C ABI is the object's address plus this
    /// offset.
    pub handle: Option<usize>,
    pub layout: Option<Layout>,
    pub abi: Option<CAbi>,
    pub requires_grad: Option<RequiresGrad>,
    pub state: Option<StateSymbols>,
    /// Whether the C++ functions of this version of torch may be called.  Unknown versions stay at level `Slow`.
    pub known: bool,
    /// For key sets with one of these bits, a Python or C++ override may answer sizes.
    pub python_keys: u64,
    /// Keys of dense tensors, and keys of tensors that are stored negated or conjugated.
    dense_keys: u64,
    lazy_keys: u64,
}

static TORCH: GilCell<Option<Torch>> = GilCell::new(None);
static DTYPES: GilCell<Option<HashMap<usize, i32>>> = GilCell::new(None);

/// The probe's result.  The first call imports torch.
pub fn torch(py: Python<'_>) -> Res<Torch> {
    if let Some(known) = TORCH.read(py, |t| *t) {
        return Ok(known);
    }
    let found = probe(py)?;
    TORCH.with(py, |t| *t = Some(found));
    Ok(found)
}

/// Initialises torch's C ABI for plans, which use the offsets of the probe.
pub fn ready(py: Python<'_>) -> pyo3::PyResult<()> {
    aten::initialise(py, || {
        let torch = torch(py)?;
        let keys = torch.layout.map(|layout| aten::Keys { offset: layout.keys, dense: torch.dense_keys });
        Ok((torch.handle, keys, torch.known))
    })
}

/// Caps the level, for tests of the slower levels.  Guards built later use it.  Returns the level in force.
pub fn force(py: Python<'_>, level: Level) -> Res<Level> {
    TORCH.with(py, |t| *t = None);
    let mut found = torch(py)?;
    found.level = found.level.min(level);
    if level != Level::Offsets {
        found.state = (level == Level::CAbi).then(|| StateSymbols::find(false)).flatten();
    }
    TORCH.with(py, |t| *t = Some(found));
    Ok(found.level)
}

/// The code of a `torch.dtype` on torch's C++ side.  None for a dtype without tensors.
pub fn dtype_code(dtype: Obj) -> Res<Option<i32>> {
    if let Some(code) = DTYPES.read(dtype.py(), |d| d.as_ref().and_then(|m| m.get(&dtype.id()).copied())) {
        return Ok(Some(code));
    }
    let torch = torch(dtype.py())?;
    let (Some(offset), Some(abi)) = (torch.handle, torch.abi) else { return Ok(None) };
    let names = Owned::tuple(&[Owned::interned("dtype")?.get()])?;
    let made = import(c"torch")?.attr(c"empty")?.call(&[Owned::int(0)?.get(), dtype], Some(names.get()));
    let Ok(tensor) = made else {
        clear_error();
        return Ok(None);
    };
    let code = abi.dtype(tensor.get().id() + offset);
    if let Some(code) = code {
        // dtypes are immortal singletons, so their addresses are valid keys.
        DTYPES.with(dtype.py(), |d| d.get_or_insert_with(HashMap::new).insert(dtype.id(), code));
    }
    Ok(code)
}

/// How a tensor stores its values.  0: as they are; 1: negated or conjugated; 2: it is no dense tensor with memory.
pub fn kind_of(t: Obj) -> Res<u8> {
    let torch = torch(t.py())?;
    let keys = match torch.layout {
        Some(layout) if torch.level == Level::Offsets => RawTensor::of(t, layout).keys(),
        _ => {
            let keys_of = import(c"torch")?.attr(c"_C")?.attr(c"_dispatch_keys")?;
            keys_of.call(&[t], None)?.attr(c"raw_repr")?.call(&[], None)?.as_u64()?
        }
    };
    Ok(match keys & !torch.dense_keys {
        0 => 0,
        rest if rest & !torch.lazy_keys == 0 => 1,
        _ => 2,
    })
}

/// Facts about one tensor, read from Python.
struct Sample {
    tensor: Owned,
    imp: usize,
    keys: u64,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    requires_grad: bool,
}

// Tensors that differ in every property that the probe looks for.
const SAMPLES: &std::ffi::CStr = c"(lambda torch: [
    torch.empty(2, 3, 5), torch.empty((), dtype=torch.float64), torch.empty(7, dtype=torch.int64, device='meta'),
    torch.empty(2, 3, 4, 5, 6, dtype=torch.bool).transpose(1, 3), torch.empty(1, 2, 3, 4, 5, 6, 7, dtype=torch.bfloat16),
    torch.empty(3, 4, dtype=torch.complex64).conj(), torch.empty(0, 9, dtype=torch.uint8),
    torch.empty(11, 13, requires_grad=True), torch.nn.Parameter(torch.empty(4, 6, dtype=torch.float16)),
])(__import__('torch'))";

fn ints(seq: &Owned) -> Res<Vec<i64>> {
    let t = seq.to_tuple()?;
    t.get().tuple_items().map(|i| i.own().as_i64()).collect()
}

fn samples() -> Res<Vec<Sample>> {
    let made = pyo3::Python::attach(|py| py.eval(SAMPLES, None, None).map(|v| Owned::of_py(v.unbind())))?;
    let keys_of = import(c"torch")?.attr(c"_C")?.attr(c"_dispatch_keys")?;
    let mut out = Vec::new();
    for t in made.to_tuple()?.get().tuple_items().map(Obj::own) {
        out.push(Sample {
            imp: t.attr(c"_cdata")?.as_u64()? as usize,
            keys: keys_of.call(&[t.get()], None)?.attr(c"raw_repr")?.call(&[], None)?.as_u64()?,
            sizes: ints(&t.attr(c"shape")?)?,
            strides: ints(&t.attr(c"stride")?.call(&[], None)?)?,
            requires_grad: t.attr(c"requires_grad")?.is_true()?,
            tensor: t,
        });
    }
    Ok(out)
}

/// The only offset below `limit`, in steps of `step`, at which every sample passes `test`.
fn unanimous(limit: usize, step: usize, samples: &[Sample], test: impl Fn(&Sample, usize) -> bool) -> Option<usize> {
    let mut fits = (0..limit).step_by(step).filter(|&o| samples.iter().all(|s| test(s, o)));
    let first = fits.next()?;
    fits.next().is_none().then_some(first)
}

fn word<const N: usize>(address: usize) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    probe_bytes(address, &mut bytes).then_some(bytes)
}

const OBJECT_BYTES: usize = 72;
const IMPL_BYTES: usize = 200;

fn probe_layout(samples: &[Sample], handle: usize, abi: &CAbi) -> Option<Layout> {
    let word_is = |at: usize, want: u64| word::<8>(at).is_some_and(|b| u64::from_ne_bytes(b) == want);
    let keys = unanimous(IMPL_BYTES, 8, samples, |s, o| word_is(s.imp + o, s.keys))?;
    let dtype = unanimous(IMPL_BYTES, 2, samples, |s, o| {
        let want = abi.dtype(s.tensor.get().id() + handle);
        word::<2>(s.imp + o).is_some_and(|b| Some(i32::from(u16::from_ne_bytes(b))) == want)
    })?;
    let sizes = unanimous(IMPL_BYTES - 88, 8, samples, |s, o| {
        let n = s.sizes.len();
        let inline = word::<8>(s.imp + o + 8).map_or(0, usize::from_ne_bytes);
        let (a, b) = if n <= 5 { (s.imp + o + 8, s.imp + o + 48) } else { (inline, inline + 8 * n) };
        word_is(s.imp + o, n as u64)
            && (n <= 5 || inline > 1 << 16)
            && s.sizes.iter().enumerate().all(|(i, v)| word_is(a + 8 * i, *v as u64))
            && s.strides.iter().enumerate().all(|(i, v)| word_is(b + 8 * i, *v as u64))
    })?;
    Some(Layout { handle, keys, dtype, sizes, autograd: None })
}

// New tensors without and with a required gradient.
const GRADS: &std::ffi::CStr = c"(lambda torch: (
    (torch.empty(2), torch.empty(3, dtype=torch.int64), torch.empty(2, 2, dtype=torch.bool)),
    (torch.empty(2, requires_grad=True), torch.nn.Parameter(torch.empty(3, 4)), torch.empty((), dtype=torch.float64, requires_grad=True)),
))(__import__('torch'))";

const METADATA_BYTES: usize = 200;

/// Finds the metadata pointer, which is null for the first kind only, and the flag: the one byte that
/// `requires_grad_()` flips in all tensors.
fn probe_autograd(keys: usize) -> Res<Option<Autograd>> {
    let made = pyo3::Python::attach(|py| py.eval(GRADS, None, None).map(|v| Owned::of_py(v.unbind())))?;
    let imps = |i: usize| -> Res<Vec<usize>> {
        made.get().tuple_item(i).tuple_items().map(|t| Ok(t.own().attr(c"_cdata")?.as_u64()? as usize)).collect()
    };
    let (plain, with_grad) = (imps(0)?, imps(1)?);
    let pointer_at = |imp: usize, o: usize| word::<8>(imp + o).map_or(0, usize::from_ne_bytes);
    // Below the key set, which lies in the TensorImpl.  Memory behind the TensorImpl may have any contents.
    let mut found = (0..keys).step_by(8).filter(|&o| {
        plain.iter().all(|imp| pointer_at(*imp, o) == 0) && with_grad.iter().all(|imp| pointer_at(*imp, o) > 1 << 16)
    });
    let (Some(pointer), None) = (found.next(), found.next()) else { return Ok(None) };
    // Memory behind the metadata may change meanwhile.  So a byte counts as the flag only if it follows every change in
    // every tensor.
    let mut flags: Vec<usize> = (0..METADATA_BYTES).collect();
    for (t, imp) in made.get().tuple_item(1).tuple_items().zip(with_grad) {
        let metadata = pointer_at(imp, pointer);
        for on in [true, false, true, false, true] {
            t.own().attr(c"requires_grad_")?.call(&[Owned::bool(on).get()], None)?;
            let Some(bytes) = word::<METADATA_BYTES>(metadata) else { return Ok(None) };
            flags.retain(|i| bytes[*i] == u8::from(on));
        }
    }
    let [flag] = flags[..] else { return Ok(None) };
    Ok(Some(Autograd { pointer, flag }))
}

fn probe(py: Python<'_>) -> Res<Torch> {
    if let (Some(text), Some(warn)) = (learn_version()?, registered_object::WARN.known(py)) {
        warn.call(&[Owned::str(&text)?.get()], None)?;
    }
    let known = has_known_version();
    let samples = samples()?;
    let handle = unanimous(OBJECT_BYTES, 8, &samples, |s, o| {
        o >= 16 && word::<8>(s.tensor.get().id() + o).is_some_and(|b| usize::from_ne_bytes(b) == s.imp)
    });
    let abi = CAbi::find();
    let mut layout = handle.zip(abi).and_then(|(h, abi)| probe_layout(&samples, h, &abi));
    if let Some(layout) = &mut layout {
        layout.autograd = probe_autograd(layout.keys)?;
    }
    let requires_grad = RequiresGrad::find().filter(|f| {
        layout.is_some_and(|l| {
            samples.iter().all(|s| RawTensor::of(s.tensor.get(), l).requires_grad(*f) == s.requires_grad)
        })
    });
    let level = match (handle, abi, layout, requires_grad) {
        _ if !known => Level::Slow,
        (Some(_), Some(_), Some(_), Some(_)) => Level::Offsets,
        (Some(_), Some(_), _, _) => Level::CAbi,
        _ => Level::Slow,
    };
    Ok(Torch {
        level,
        handle,
        layout,
        abi,
        requires_grad,
        state: if known { StateSymbols::find(true) } else { None },
        known,
        python_keys: bits_of(PYTHON).unwrap_or(u64::MAX),
        dense_keys: bits_of(DENSE).unwrap_or(0),
        lazy_keys: bits_of(LAZY).unwrap_or(0),
    })
}

/// With these keys, an override may answer sizes.
const PYTHON: &[&CStr] =
    &[c"Python", c"PythonTLSSnapshot", c"FuncTorchBatched", c"FuncTorchGradWrapper", c"Functionalize"];
const DENSE: &[&CStr] = &[
    c"CPU",
    c"CUDA",
    c"XPU",
    c"MPS",
    c"PrivateUse1",
    c"ADInplaceOrView",
    c"AutogradCPU",
    c"AutocastCPU",
    c"AutocastCUDA",
    c"AutocastXPU",
    c"AutocastMPS",
    c"AutocastPrivateUse1",
];
const LAZY: &[&CStr] = &[c"Conjugate", c"Negative"];

/// Bits of these dispatch keys in the key set of a tensor.
fn bits_of(names: &[&CStr]) -> Result<u64, Raised> {
    let c = import(c"torch")?.attr(c"_C")?;
    let (set, key) = (c.attr(c"DispatchKeySet")?, c.attr(c"DispatchKey")?);
    let mut bits = 0;
    for name in names {
        match key.attr(name) {
            Ok(k) => bits |= set.call(&[k.get()], None)?.attr(c"raw_repr")?.call(&[], None)?.as_u64()?,
            Err(Raised) => clear_error(),
        }
    }
    Ok(bits)
}
