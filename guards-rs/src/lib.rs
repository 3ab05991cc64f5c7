//! The native engine of pycompiler: all work that happens once for each call.
//!
//! `compiled.rs` handles a call; `methods.rs` has its Python methods.  `signature.rs` binds arguments, `cache.rs` and
//! `guard/` find an entry, `entry.rs` runs it.  `autograd/` runs around the plans of a call with gradients.  All unsafe code is in `ffi/`.

#[cfg(Py_GIL_DISABLED)]
compile_error!("the engine's state is shared by the GIL: builds of CPython without it are not supported");

mod autograd;
mod backend_call;
mod cache;
mod compiled;
mod entry;
mod ffi;
mod guard;
mod guard_tree;
mod hook;
mod hook_state;
mod methods;
mod plan;
mod registered_object;
mod signature;
mod tensor_view;
mod watch;

use ffi::dict_probe::{self, ChangeSign};
use ffi::object::{value_error, Obj, Owned};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

pyo3::create_exception!(
    pycompiler._native,
    RecompileError,
    PyRuntimeError,
    "A call found no fitting entry while mode 'error' forbids a compile."
);

/// hand_in(name=object, ...): stores Python objects that the engine needs, by the names of `handed_in()`.  None removes
/// one.
#[pyfunction]
#[pyo3(signature = (**objects))]
fn hand_in(objects: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    for (name, object) in objects.into_iter().flatten() {
        registered_object::put(object.py(), name.extract()?, (!object.is_none()).then(|| Obj::of(&object).own()))?;
    }
    Ok(())
}

/// Names of the Python objects of the package that the engine needs.
#[pyfunction]
fn handed_in() -> Vec<&'static str> {
    registered_object::names().collect()
}

/// Sets the frame hook.  `callback(code, function) -> CompiledFunction | None` is called once for each code object met
/// while the hook is on.  None turns the hook off.
#[pyfunction]
fn set_frame_hook(py: Python<'_>, callback: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    Ok(hook::set_callback(py, callback.map(|c| Obj::of(c).own()))?)
}

/// Turns the frame hook on in this thread, until the matching `exit_hook()`.
#[pyfunction]
fn enter_hook(py: Python<'_>) -> PyResult<()> {
    Ok(hook::enter(py)?)
}

#[pyfunction]
fn exit_hook(py: Python<'_>) {
    hook::exit(py);
}

/// Ignores the frame hook in this thread, until the matching `resume_hook()`.
#[pyfunction]
fn pause_hook() {
    hook_state::pause();
}

#[pyfunction]
fn resume_hook() {
    hook_state::resume();
}

/// Freezes all compiled functions in this thread, until the matching `exit_frozen()`: a miss runs eagerly.
#[pyfunction]
fn enter_frozen() {
    compiled::enter_frozen();
}

#[pyfunction]
fn exit_frozen() {
    compiled::exit_frozen();
}

/// Turns the fast path of guards on or off, for all callables.  Returns whether this interpreter supports it.
#[pyfunction]
fn set_fast_guards(py: Python<'_>, on: bool) -> bool {
    guard::tree::set_fast_guards(on);
    guard::tree::fast_guards_supported(py)
}

const SIGNS: &[(&str, ChangeSign)] =
    &[("events", ChangeSign::Event), ("versions", ChangeSign::Version), ("nothing", ChangeSign::Nothing)];

/// Selects how the fast path of guards finds changed dicts ("events", "versions", "nothing"), for trees built later.
/// None selects the best way that works here.  Returns the selected way.
#[pyfunction]
fn force_dict_sign(py: Python<'_>, sign: Option<&str>) -> PyResult<&'static str> {
    let wanted = match sign.map(|sign| SIGNS.iter().find(|(name, _)| *name == sign)) {
        None => None,
        Some(Some((_, sign))) => Some(*sign),
        Some(None) => {
            return Err(value_error("unknown sign of a dict's change; known: events, versions, nothing").into())
        }
    };
    let got = dict_probe::force(py, wanted);
    Ok(SIGNS.iter().find(|(_, sign)| *sign == got).map_or("", |(name, _)| name))
}

/// Makes the n-th allocation of the engine in this thread from now on find no memory, alone or with `all` later ones; for
/// tests.
#[pyfunction]
fn fail_allocations(n: u64, all: bool) {
    ffi::shortage::fail(n, all);
}

/// Ends `fail_allocations`.  Returns whether the allocation that was to fail came.
#[pyfunction]
fn restore_allocations() -> bool {
    ffi::shortage::restore()
}

/// Number of dicts that call back when they change, for guards that rely on it.
#[pyfunction]
fn watched_dicts(py: Python<'_>) -> usize {
    ffi::dict_events::watched(py)
}

const LEVELS: &[(&str, tensor_view::Level)] = &[
    ("offsets", tensor_view::Level::Offsets),
    ("c_abi", tensor_view::Level::CAbi),
    ("slow", tensor_view::Level::Slow),
];

/// Caps how tensors are read ("offsets", "c_abi" or "slow"), for guards built later.  Returns the level in force.
#[pyfunction]
fn force_tensor_level(py: Python<'_>, level: &str) -> PyResult<&'static str> {
    let Some((_, wanted)) = LEVELS.iter().find(|(name, _)| *name == level) else {
        return Err(value_error(&format!("unknown level {level:?}; known: offsets, c_abi, slow")).into());
    };
    let got = tensor_view::force(py, *wanted)?;
    Ok(LEVELS.iter().find(|(_, l)| *l == got).map_or("", |(name, _)| name))
}

/// Result of the probe: {"level", "handle", "keys", "dtype", "sizes", "autograd", "state"}.  Offsets are in bytes, None
/// if not found.
#[pyfunction]
fn tensor_probe(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let torch = tensor_view::torch(py)?;
    let d = PyDict::new(py);
    d.set_item("level", LEVELS.iter().find(|(_, l)| *l == torch.level).map(|(name, _)| *name))?;
    d.set_item("handle", torch.handle)?;
    d.set_item("keys", torch.layout.map(|l| l.keys))?;
    d.set_item("dtype", torch.layout.map(|l| l.dtype))?;
    d.set_item("sizes", torch.layout.map(|l| l.sizes))?;
    d.set_item("autograd", torch.layout.and_then(|l| l.autograd).map(|a| (a.pointer, a.flag)))?;
    d.set_item("state", torch.state.is_some())?;
    Ok(d)
}

/// Guard kinds that the engine knows.
#[pyfunction]
fn guard_kinds() -> Vec<&'static str> {
    guard::KIND_NAMES.to_vec()
}

/// Source accessors that the engine knows.
#[pyfunction]
fn accessors() -> Vec<&'static str> {
    guard::source::accessor_names().collect()
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let add = |name: &str, value: Owned| m.add(name, value.into_py(py));
    add("CompiledFunction", ffi::callable::make_type::<compiled::Compiled>()?)?;
    add("TailCall", ffi::tailcall::make_type(ffi::callable::call_tail::<compiled::Compiled>)?)?;
    add("tail_call", ffi::callable::tail_call_function()?)?;
    add("entered", ffi::callable::entered_function()?)?;
    add("arrive", ffi::callable::arrive_function()?)?;
    m.add_class::<entry::Entry>()?;
    m.add_class::<backend_call::BackendCall>()?;
    m.add_class::<hook::FrameHook>()?;
    m.add_class::<guard::plain_state::PlainState>()?;
    m.add_class::<guard_tree::GuardTree>()?;
    let error = py.get_type::<RecompileError>();
    registered_object::RECOMPILE_ERROR.put(py, Some(Obj::of(&error).own()));
    m.add("RecompileError", error)?;
    m.add_function(wrap_pyfunction!(hand_in, m)?)?;
    m.add_function(wrap_pyfunction!(handed_in, m)?)?;
    m.add_function(wrap_pyfunction!(set_frame_hook, m)?)?;
    m.add_function(wrap_pyfunction!(enter_hook, m)?)?;
    m.add_function(wrap_pyfunction!(exit_hook, m)?)?;
    m.add_function(wrap_pyfunction!(pause_hook, m)?)?;
    m.add_function(wrap_pyfunction!(resume_hook, m)?)?;
    m.add_function(wrap_pyfunction!(enter_frozen, m)?)?;
    m.add_function(wrap_pyfunction!(exit_frozen, m)?)?;
    m.add_function(wrap_pyfunction!(set_fast_guards, m)?)?;
    m.add_function(wrap_pyfunction!(force_dict_sign, m)?)?;
    m.add_function(wrap_pyfunction!(watched_dicts, m)?)?;
    m.add_function(wrap_pyfunction!(fail_allocations, m)?)?;
    m.add_function(wrap_pyfunction!(restore_allocations, m)?)?;
    m.add_function(wrap_pyfunction!(force_tensor_level, m)?)?;
    m.add_function(wrap_pyfunction!(tensor_probe, m)?)?;
    m.add_function(wrap_pyfunction!(guard_kinds, m)?)?;
    m.add_function(wrap_pyfunction!(accessors, m)?)?;
    m.add_function(wrap_pyfunction!(watch::show_ranges, m)?)?;
    m.add_function(wrap_pyfunction!(watch::set_watcher, m)?)?;
    autograd::register(m)?;
    plan::register(m)?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))
}
