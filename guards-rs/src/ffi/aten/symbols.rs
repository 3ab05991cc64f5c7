//! The table of torch's symbols, resolved once, for the first plan.

use std::ffi::{c_char, c_void, CStr, CString};
use std::sync::OnceLock;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::storage::{self, Storages};
use super::{Failure, Outcome};
use crate::ffi::torch::{exported, named};

type Raw = *mut c_void;
pub type GetI64 = unsafe extern "C" fn(Raw, *mut i64) -> i32;
pub type GetI32 = unsafe extern "C" fn(Raw, *mut i32) -> i32;
pub type GetWords = unsafe extern "C" fn(Raw, *mut *const i64) -> i32;
type W = usize;
#[rustfmt::skip]
pub type ShimFn = unsafe extern "C" fn(
    W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, W, f64, f64, f64, f64, f64, f64, f64, f64,
) -> i32;
type GuardMake = unsafe extern "C" fn(*mut u64, u64);
type GuardDrop = unsafe extern "C" fn(*mut u64);

/// The offset of the key set in a TensorImpl, and the keys of dense tensors.
#[derive(Clone, Copy)]
pub struct Keys {
    pub offset: usize,
    pub dense: u64,
}

/// Results of the tensor probe: the offset of the `at::Tensor` in a Python tensor, `Keys`, and whether this torch is
/// known.
pub type ProbeResult = (Option<usize>, Option<Keys>, bool);

/// Declares `Api`.  Required symbols are fields of function type; optional symbols are `Option`s (None: not exported).
macro_rules! table {
    (required { $($r:ident: $rt:ty = $rn:literal,)* } optional { $($o:ident: $ot:ty = $on:literal,)* }) => {
        pub struct Api {
            $(pub $r: $rt,)*
            $(pub $o: Option<$ot>,)*
            pub exclude_guard: Option<(GuardMake, GuardDrop)>,
            /// Keys to exclude: for operators that mutate an argument, and for all others.
            pub excluded_keys: Option<(u64, u64)>,
            pub tensor_offset: Option<usize>,
            pub keys: Option<Keys>,
            pub storages: Option<Storages>,
            pub abi_version: u64,
            tensor_base: OnceLock<Py<PyType>>,
        }

        fn resolve(tensor_offset: Option<usize>, keys: Option<Keys>) -> Outcome<Api> {
            Ok(Api {
                $($r: {
                    let address = named($rn).ok_or_else(|| missing($rn))?;
                    // SAFETY: shim.h declares this symbol with this signature in every supported version of torch.
                    unsafe { std::mem::transmute::<usize, $rt>(address) }
                },)*
                $($o: named($on).map(|address| {
                    // SAFETY: as above.  The mangled name of a C++ symbol fixes its argument types but not its return
                    // type.  The headers of the known versions of torch fix it (`symbol` finds it in no other version).
                    unsafe { std::mem::transmute::<usize, $ot>(address) }
                }),)*
                exclude_guard: None,
                excluded_keys: None,
                tensor_offset,
                keys,
                storages: None,
                abi_version: 0,
                tensor_base: OnceLock::new(),
            })
        }
    };
}

table! {
    required {
        empty_strided: unsafe extern "C" fn(i64, *const i64, *const i64, i32, i32, i32, *mut Raw) -> i32 = "aoti_torch_empty_strided",
        reinterpret_tensor: unsafe extern "C" fn(Raw, i64, *const i64, *const i64, i64, *mut Raw) -> i32 = "aoti_torch__reinterpret_tensor",
        delete_tensor_object: unsafe extern "C" fn(Raw) -> i32 = "aoti_torch_delete_tensor_object",
        new_tensor_handle: unsafe extern "C" fn(Raw, *mut Raw) -> i32 = "aoti_torch_new_tensor_handle",
        copy_: unsafe extern "C" fn(Raw, Raw, i32) -> i32 = "aoti_torch_copy_",
        get_data_ptr: unsafe extern "C" fn(Raw, *mut Raw) -> i32 = "aoti_torch_get_data_ptr",
        get_size: unsafe extern "C" fn(Raw, i64, *mut i64) -> i32 = "aoti_torch_get_size",
        get_stride: unsafe extern "C" fn(Raw, i64, *mut i64) -> i32 = "aoti_torch_get_stride",
        get_sizes: GetWords = "aoti_torch_get_sizes",
        get_strides: GetWords = "aoti_torch_get_strides",
        get_dim: GetI64 = "aoti_torch_get_dim",
        get_numel: GetI64 = "aoti_torch_get_numel",
        get_storage_offset: GetI64 = "aoti_torch_get_storage_offset",
        get_storage_size: GetI64 = "aoti_torch_get_storage_size",
        get_dtype: GetI32 = "aoti_torch_get_dtype",
        get_device_type: GetI32 = "aoti_torch_get_device_type",
        get_device_index: GetI32 = "aoti_torch_get_device_index",
        element_size: unsafe extern "C" fn(i32) -> usize = "aoti_torch_dtype_element_size",
        grad_mode_is_enabled: unsafe extern "C" fn() -> bool = "aoti_torch_grad_mode_is_enabled",
        grad_mode_set_enabled: unsafe extern "C" fn(bool) = "aoti_torch_grad_mode_set_enabled",
    }
    optional {
        // 2.13 keeps the message of the last exception.  In older versions, the step runs again from Python to get it.
        exception_what: unsafe extern "C" fn() -> *const c_char = "torch_exception_get_what_without_backtrace",
        get_num_threads: unsafe extern "C" fn(*mut u32) -> i32 = "torch_get_num_threads",
        at_get_num_threads: unsafe extern "C" fn() -> i32 = "_ZN2at15get_num_threadsEv",
        // One of these two calls the dispatcher.  Without both, operators are called from Python.
        call_dispatcher_versioned: unsafe extern "C" fn(*const c_char, *const c_char, *mut u64, u64) -> i32 = "torch_call_dispatcher",
        call_dispatcher: unsafe extern "C" fn(*const c_char, *const c_char, *mut u64) -> i32 = "aoti_torch_call_dispatcher",
        new_stable_ivalue: unsafe extern "C" fn(*mut *mut u64) -> i32 = "torch_new_stable_ivalue",
        list_new: unsafe extern "C" fn(usize, *mut Raw) -> i32 = "torch_new_list_reserve_size",
        list_push: unsafe extern "C" fn(Raw, u64) -> i32 = "torch_list_push_back",
        list_size: unsafe extern "C" fn(Raw, *mut usize) -> i32 = "torch_list_size",
        list_get: unsafe extern "C" fn(Raw, usize, *mut u64) -> i32 = "torch_list_get_item",
        list_delete: unsafe extern "C" fn(Raw) -> i32 = "torch_delete_list",
        string_new: unsafe extern "C" fn(*const c_char, usize, *mut Raw) -> i32 = "torch_new_string_handle",
        // Wrapping: THPVariable_Wrap (by move, else by const reference), else the C ABI of 2.14, else
        // torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr.
        wrap_move: unsafe extern "C" fn(Raw) -> *mut ffi::PyObject = "_Z16THPVariable_WrapON2at10TensorBaseE",
        wrap_copy: unsafe extern "C" fn(Raw) -> *mut ffi::PyObject = "_Z16THPVariable_WrapRKN2at10TensorBaseE",
        to_pyobject: unsafe extern "C" fn(Raw, Raw, *mut Raw) -> i32 = "torch_tensor_to_pyobject",
        // Unwrapping: the probed offset, else this (2.14), else torch._C._aoti.unsafe_alloc_void_ptr_from_tensor.
        from_pyobject: unsafe extern "C" fn(Raw, *mut Raw) -> i32 = "torch_tensor_from_pyobject",
        // Counting a write into a tensor: these three, else torch.autograd.graph.increment_version.
        bump_version: unsafe extern "C" fn(Raw) = "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
        is_inference: unsafe extern "C" fn(Raw) -> bool = "_ZN2at6native12is_inferenceERKNS_6TensorE",
        in_inference_mode: unsafe extern "C" fn() -> bool = "_ZN3c1013InferenceMode10is_enabledEv",
        get_abi_version: unsafe extern "C" fn() -> u64 = "aoti_torch_abi_version",
    }
}

// SAFETY: function addresses and plain numbers; the library handle is only passed to dlsym.
unsafe impl Send for Api {}
// SAFETY: as above.
unsafe impl Sync for Api {}

static API: OnceLock<Result<Api, String>> = OnceLock::new();

/// The table.  An error if torch is not loaded or lacks a required symbol.
#[inline]
pub fn api() -> Outcome<&'static Api> {
    match API.get() {
        Some(Ok(api)) => Ok(api),
        Some(Err(why)) => Err(Failure(why.clone())),
        None => Err(Failure("torch's C ABI is not resolved yet: make a Plan first".into())),
    }
}

/// Resolves the table.  Must be called before any other function here.  Cheap after the first time.
pub fn initialise(py: Python<'_>, probe: impl FnOnce() -> PyResult<ProbeResult>) -> PyResult<()> {
    if API.get().is_none() {
        let built = build(py, probe()?)?.map_err(|f| f.0);
        let _ = API.set(built); // another thread may have been first, with the same table
    }
    api().map(drop).map_err(PyErr::from)
}

fn build(py: Python<'_>, (tensor_offset, keys, known): ProbeResult) -> PyResult<Outcome<Api>> {
    let torch = py.import("torch")?;
    let mut api = match resolve(tensor_offset, keys) {
        Ok(api) => api,
        Err(failure) => return Ok(Err(failure)),
    };
    if let Some(version) = api.get_abi_version {
        // SAFETY: a function without arguments.
        api.abi_version = unsafe { version() };
    }
    if let (Some(keys), true) = (api.keys, known) {
        api.storages = storage::probe(py, keys.offset)?;
    }
    api.exclude_guard = exclude_guard();
    api.excluded_keys = excluded_keys(&torch).ok();
    Ok(Ok(api))
}

/// Constructor and destructor of `c10::impl::ExcludeDispatchKeyGuard`.
fn exclude_guard() -> Option<(GuardMake, GuardDrop)> {
    // Constructors and destructors return nothing, so their names fix the whole signature.
    let make = exported(c"_ZN3c104impl23ExcludeDispatchKeyGuardC1ENS_14DispatchKeySetE")?;
    let destroy = exported(c"_ZN3c104impl23ExcludeDispatchKeyGuardD1Ev")?;
    // SAFETY: `this` first; a DispatchKeySet is a trivially copyable 64-bit class, passed as an integer.
    Some(unsafe { (std::mem::transmute::<usize, GuardMake>(make), std::mem::transmute::<usize, GuardDrop>(destroy)) })
}

/// The dispatch keys that operators run below.  They are autograd (as in AutoDispatchBelowAutograd), autocast (the
/// captured graph already contains its casts), and ADInplaceOrView, which would make views differentiable.  An operator
/// that mutates keeps ADInplaceOrView, because that key counts the versions of mutated tensors.
fn excluded_keys(torch: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let c = torch.getattr("_C")?;
    let (keys, set) = (c.getattr("DispatchKey")?, c.getattr("DispatchKeySet")?);
    let bits =
        |name: &str| -> PyResult<u64> { set.call1((keys.getattr(name)?,))?.call_method0("raw_repr")?.extract::<u64>() };
    let mut all = 0u64;
    for name in ["AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"] {
        all |= bits(name)?;
    }
    for name in ["AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastPrivateUse1"] {
        all |= bits(name).unwrap_or(0); // a torch without the key has nothing to exclude
    }
    Ok((all, all | bits("ADInplaceOrView")?))
}

impl Api {
    /// `torch._C.TensorBase`.  The probe verified the layout of its instances.
    pub fn tensor_base(&self, py: Python<'_>) -> PyResult<*mut ffi::PyTypeObject> {
        if let Some(base) = self.tensor_base.get() {
            return Ok(base.as_ptr().cast());
        }
        let base = py.import("torch")?.getattr("_C")?.getattr("TensorBase")?.cast_into::<PyType>()?;
        Ok(self.tensor_base.get_or_init(|| base.unbind()).as_ptr().cast())
    }

    /// The route of each optional capability, for users and tests.
    pub fn routes(&self) -> Vec<(&'static str, &'static str)> {
        let pick = |on: bool, fast: &'static str, slow: &'static str| if on { fast } else { slow };
        vec![
            ("unwrap", pick(self.tensor_offset.is_some(), "offset", "call")),
            ("wrap", pick(self.wrap_move.or(self.wrap_copy).is_some(), "THPVariable_Wrap", "call")),
            (
                "below_autograd",
                pick(self.exclude_guard.is_some() && self.excluded_keys.is_some(), "guard", "grad mode"),
            ),
            (
                "dispatcher",
                pick(self.call_dispatcher.is_some() || self.call_dispatcher_versioned.is_some(), "stable", "python"),
            ),
            ("pins", pick(self.storages.is_some(), "counted", "viewed")),
            ("versions", pick(self.bump_version.is_some() && self.is_inference.is_some(), "symbol", "python")),
            ("messages", pick(self.exception_what.is_some(), "kept", "run again")),
            ("threads", pick(self.get_num_threads.is_some(), "stable", "symbol")),
        ]
    }
}

fn missing(symbol: &str) -> Failure {
    Failure(format!("the loaded torch does not export {symbol}; supported are torch 2.11 and later on Linux"))
}

/// A symbol of a library that this process has opened.
pub fn find(library: Raw, symbol: &str) -> Option<Raw> {
    let name = CString::new(symbol).ok()?;
    // SAFETY: a library handle from dlopen and a C string.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

pub fn dl_error() -> String {
    // SAFETY: dlerror returns null or a C string owned by the C library.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason given".into();
    }
    // SAFETY: not null, NUL-terminated.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
