//! Every `unsafe` line of the plan executor: torch's C ABI, kernels, scratch memory and the GIL.
//!
//! In: the libraries that `import torch` has loaded.  Out: safe types: `Tensor` (an owned handle), `Handle` (a
//! borrowed one), `KernelFn`, `Scratch`, `Gil`, `BelowAutograd`; `pytype` holds the vectorcall type of `_native.Plan`.
//!
//! A handle is the address of an `at::Tensor`.  Every symbol is found by `dlsym` in the loaded libraries, so one
//! build serves all supported versions of torch; what a version lacks has the fallback named at the symbol.

pub mod pytype;
mod scratch;
mod symbols;

use std::ffi::{c_void, CStr, CString};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};

pub use scratch::Scratch;
pub use symbols::{api, initialise, Api};

/// What a call into torch said when it failed.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

pub type Outcome<T> = Result<T, Failure>;

/// True when a test forces the slow ways of wrapping and unwrapping.
static SLOW: AtomicBool = AtomicBool::new(false);

pub fn force_slow(on: bool) {
    SLOW.store(on, Ordering::Relaxed);
}

fn slow() -> bool {
    SLOW.load(Ordering::Relaxed)
}

/// Turns an error code of the C ABI into an outcome, with the message of the C++ exception where torch keeps it.
fn checked(code: i32, call: &str) -> Outcome<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Failure(last_message().unwrap_or_else(|| format!("{call} failed (this torch keeps no message)"))))
}

#[cold]
fn last_message() -> Option<String> {
    let what = api().ok()?.exception_what?;
    // SAFETY: the function takes nothing and returns null or a C string that lives until this thread's next exception.
    let text = unsafe { what() };
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, and NUL-terminated by contract.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

/// An `at::Tensor` that somebody else keeps alive for as long as this value is used: an input, a constant, or a slot.
#[derive(Clone, Copy, Debug)]
pub struct Handle(*mut c_void);

// SAFETY: the TensorImpl behind a handle is reference counted atomically; reading its metadata from several threads is
// what torch itself does.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// An owned `at::Tensor`, deleted on drop.
#[derive(Debug)]
pub struct Tensor(*mut c_void);

// SAFETY: see `Handle`.
unsafe impl Send for Tensor {}
// SAFETY: see `Handle`.
unsafe impl Sync for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Ok(api) = api() {
            // SAFETY: the handle is owned by this value and deleted once.
            unsafe { (api.delete_tensor_object)(self.0) };
        }
    }
}

/// Where an allocation goes: codes of `aoti_torch_device_type_*` and an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub kind: i32,
    pub index: i32,
}

impl Tensor {
    pub fn handle(&self) -> Handle {
        Handle(self.0)
    }

    /// Gives the handle up to C code that takes ownership.
    fn into_raw(self) -> *mut c_void {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }

    /// `torch.empty_strided`.
    pub fn empty_strided(sizes: &[i64], strides: &[i64], dtype: i32, device: Device) -> Outcome<Tensor> {
        debug_assert_eq!(sizes.len(), strides.len());
        let api = api()?;
        let mut out = std::ptr::null_mut();
        // SAFETY: both pointers address `ndim` integers; `out` receives a new reference on success.
        let code = unsafe {
            let (sizes_ptr, strides_ptr) = (sizes.as_ptr(), strides.as_ptr());
            (api.empty_strided)(sizes.len() as i64, sizes_ptr, strides_ptr, dtype, device.kind, device.index, &mut out)
        };
        checked(code, "aoti_torch_empty_strided")?;
        Ok(Tensor(out))
    }

    /// The result as Python's `torch.Tensor` (a new reference); consumes the handle.  Needs the GIL.
    pub fn into_py(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let api = api()?;
        if let (Some(wrap), false) = (api.wrap_move.or(api.wrap_copy), slow()) {
            // SAFETY: `wrap` takes a reference to a TensorBase, which is what the handle's address is; GIL held (`py`).
            // A tensor that was moved from is undefined, and deleted like any other when `self` is dropped.
            let object = unsafe { wrap(self.0) };
            // SAFETY: a new reference, or null with the exception set.
            return unsafe { Bound::from_owned_ptr_or_err(py, object) };
        }
        if let (Some(wrap), false) = (api.to_pyobject, slow()) {
            let mut object = std::ptr::null_mut();
            // SAFETY: a live handle, no type, and room for the new reference; GIL held.
            let code = unsafe { wrap(self.0, std::ptr::null_mut(), &mut object) };
            checked(code, "torch_tensor_to_pyobject")?;
            // SAFETY: a new reference on success.
            return unsafe { Bound::from_owned_ptr_or_err(py, object.cast()) };
        }
        let steal = py.import("torch")?.getattr("_C")?.getattr("_aoti")?.getattr("alloc_tensor_by_stealing_from_void_ptr")?;
        // SAFETY: the pointer is not null; the capsule has no destructor, the callee takes the handle over.
        let capsule = unsafe {
            let capsule = ffi::PyCapsule_New(self.into_raw(), std::ptr::null(), None);
            Bound::from_owned_ptr_or_err(py, capsule)?
        };
        steal.call1((capsule,))
    }
}

impl Handle {
    /// The address of the first element (storage offset included).
    pub fn data_ptr(self) -> Outcome<usize> {
        let mut out = std::ptr::null_mut();
        // SAFETY: a live handle; `out` receives a borrowed address.
        let code = unsafe { (api()?.get_data_ptr)(self.0, &mut out) };
        checked(code, "aoti_torch_get_data_ptr")?;
        Ok(out as usize)
    }

    pub fn numel(self) -> i64 {
        self.read(|api| api.get_numel)
    }

    pub fn storage_offset(self) -> i64 {
        self.read(|api| api.get_storage_offset)
    }

    /// Bytes of the underlying storage.
    pub fn storage_size(self) -> i64 {
        self.read(|api| api.get_storage_size)
    }

    pub fn dim(self) -> i64 {
        self.read(|api| api.get_dim)
    }

    /// The size of one dimension; None when there is no such dimension.
    pub fn size(self, dim: i64) -> Option<i64> {
        let api = api().ok()?;
        let mut out = 0;
        if dim < 0 || dim >= self.dim() {
            return None;
        }
        // SAFETY: a live handle and an existing dimension.
        let code = unsafe { (api.get_size)(self.0, dim, &mut out) };
        (code == 0).then_some(out)
    }

    /// Bytes an item.
    pub fn itemsize(self) -> Outcome<i64> {
        // SAFETY: a code that torch returned.
        let size = unsafe { (api()?.element_size)(self.dtype()) } as i64;
        if size > 0 {
            return Ok(size);
        }
        Err(Failure("a tensor of a dtype without a size".into()))
    }

    pub fn dtype(self) -> i32 {
        self.read_i32(|api| api.get_dtype)
    }

    pub fn device_kind(self) -> i32 {
        self.read_i32(|api| api.get_device_type)
    }

    fn read(self, of: fn(&Api) -> symbols::GetI64) -> i64 {
        let mut out = 0;
        if let Ok(api) = api() {
            // SAFETY: a live handle and room for the result; these getters do not fail on a strided tensor.
            unsafe { of(api)(self.0, &mut out) };
        }
        out
    }

    fn read_i32(self, of: fn(&Api) -> symbols::GetI32) -> i32 {
        let mut out = -1;
        if let Ok(api) = api() {
            // SAFETY: as in `read`.
            unsafe { of(api)(self.0, &mut out) };
        }
        out
    }

    /// A new owned handle of the same tensor.
    pub fn to_owned(self) -> Outcome<Tensor> {
        let mut out = std::ptr::null_mut();
        // SAFETY: a live handle; `out` receives a new reference.
        let code = unsafe { (api()?.new_tensor_handle)(self.0, &mut out) };
        checked(code, "aoti_torch_new_tensor_handle")?;
        Ok(Tensor(out))
    }

    /// A view of the same storage; `offset` is added to this tensor's storage offset.
    pub fn reinterpret(self, sizes: &[i64], strides: &[i64], offset: i64) -> Outcome<Tensor> {
        debug_assert_eq!(sizes.len(), strides.len());
        let mut out = std::ptr::null_mut();
        // SAFETY: a live handle, `ndim` sizes and strides, room for a new reference.
        let code = unsafe {
            let (sizes_ptr, strides_ptr) = (sizes.as_ptr(), strides.as_ptr());
            (api()?.reinterpret_tensor)(self.0, sizes.len() as i64, sizes_ptr, strides_ptr, offset, &mut out)
        };
        checked(code, "aoti_torch__reinterpret_tensor")?;
        Ok(Tensor(out))
    }

    /// `self.copy_(source)`.
    pub fn copy_from(self, source: Handle) -> Outcome<()> {
        // SAFETY: two live handles.
        let code = unsafe { (api()?.copy_)(self.0, source.0, 0) };
        checked(code, "aoti_torch_copy_")
    }

    /// The handle as a word, for the C ABI's argument arrays.
    pub fn word(self) -> usize {
        self.0 as usize
    }
}

/// A borrowed reference to a live Python object, as the engine passes graph inputs around.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Object<'a>(*mut ffi::PyObject, PhantomData<&'a ffi::PyObject>);

impl<'a> Object<'a> {
    /// Views raw pointers as objects.
    ///
    /// # Safety
    /// Every pointer is a live object for `'a`, and the GIL is held while it is read.
    pub unsafe fn slice(raw: &'a [*mut ffi::PyObject]) -> &'a [Object<'a>] {
        // SAFETY: `Object` is a transparent wrapper; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) }
    }

    pub fn to_bound(self, py: Python<'_>) -> Bound<'_, PyAny> {
        // SAFETY: a live object (see `slice`).
        unsafe { Bound::from_borrowed_ptr(py, self.0) }
    }

    pub fn from_bound(object: &'a Bound<'_, PyAny>) -> Object<'a> {
        Object(object.as_ptr(), PhantomData)
    }

    /// The tensor behind the object: borrowed when its place in the object is known, else an owned handle.
    pub fn tensor(self, py: Python<'_>) -> PyResult<Unwrapped> {
        let api = api()?;
        if !self.is_tensor(py)? {
            // SAFETY: a live object.
            let kind = unsafe { PyType::from_borrowed_type_ptr(py, ffi::Py_TYPE(self.0)) };
            return Err(PyTypeError::new_err(format!("expected a torch.Tensor, got {}", kind.name()?)));
        }
        if let (Some(offset), false) = (api.tensor_offset, slow()) {
            // SAFETY: the object is a THPVariable, whose at::Tensor lies at this offset (probed on live tensors).
            return Ok(Unwrapped::Borrowed(Handle(unsafe { self.0.cast::<u8>().add(offset) }.cast())));
        }
        self.tensor_slow(py).map(Unwrapped::Owned)
    }

    fn is_tensor(self, py: Python<'_>) -> PyResult<bool> {
        let base = api()?.tensor_base(py)?;
        // SAFETY: a live object and a type object that the module keeps alive.
        unsafe {
            let kind = ffi::Py_TYPE(self.0);
            Ok(kind == base || ffi::PyType_IsSubtype(kind, base) != 0)
        }
    }

    #[cold]
    fn tensor_slow(self, py: Python<'_>) -> PyResult<Tensor> {
        if let (Some(unwrap), false) = (api()?.from_pyobject, slow()) {
            let mut out = std::ptr::null_mut();
            // SAFETY: a live tensor object, room for a new reference, GIL held.
            let code = unsafe { unwrap(self.0.cast(), &mut out) };
            checked(code, "torch_tensor_from_pyobject")?;
            return Ok(Tensor(out));
        }
        let aoti = py.import("torch")?.getattr("_C")?.getattr("_aoti")?;
        let capsule = aoti.call_method1("unsafe_alloc_void_ptr_from_tensor", (self.to_bound(py),))?;
        let capsule = capsule.cast_into::<PyCapsule>().map_err(PyErr::from)?;
        // SAFETY: a capsule made by torch around a new at::Tensor, nameless.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if raw.is_null() {
            return Err(PyErr::fetch(py));
        }
        Ok(Tensor(raw))
    }
}

/// See `Object::tensor`.
pub enum Unwrapped {
    Borrowed(Handle),
    Owned(Tensor),
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        PyRuntimeError::new_err(failure.0)
    }
}

/// The number of threads that torch uses inside an operator.
pub fn num_threads() -> i32 {
    let Ok(api) = api() else { return 1 };
    if let Some(get) = api.get_num_threads {
        let mut out = 1u32;
        // SAFETY: room for the result.
        unsafe { get(&mut out) };
        return out as i32;
    }
    // SAFETY: a function without arguments.
    api.at_get_num_threads.map_or(1, |get| unsafe { get() })
}

// -- kernels ----------------------------------------------------------------------------------------------------------

/// A shared library of generated kernels.  Never unloaded: its OpenMP threads may outlive any object.
pub struct Library(*mut c_void);

type RawKernel = unsafe extern "C" fn(*const usize, *const i64, i32) -> i64;

/// `int64_t symbol(void** ptrs, const int64_t* scalars, int32_t threads)`; 0, or a key of `ir.plan.KERNEL_ERRORS`.
#[derive(Clone, Copy)]
pub struct KernelFn(RawKernel);

impl Library {
    pub fn open(path: &str) -> Outcome<Library> {
        let text = CString::new(path).map_err(|_| Failure(format!("the path of the kernel library holds a NUL: {path:?}")))?;
        // SAFETY: dlopen runs the library's initialisers; the library is one that this project's code generator built.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Failure(format!("cannot load the kernel library {path}: {}", symbols::dl_error())));
        }
        Ok(Library(handle))
    }

    pub fn kernel(&self, symbol: &str) -> Outcome<KernelFn> {
        let address = symbols::find(self.0, symbol)
            .ok_or_else(|| Failure(format!("the kernel library has no symbol {symbol}: {}", symbols::dl_error())))?;
        // SAFETY: generated code declares every kernel with this signature (the contract of `ir.plan.Kernel`).
        Ok(KernelFn(unsafe { std::mem::transmute::<*mut c_void, RawKernel>(address) }))
    }
}

impl KernelFn {
    pub fn call(self, ptrs: &[usize], scalars: &[i64], threads: i32) -> i64 {
        // SAFETY: the plan passes one pointer a slot and one integer a scalar, as the kernel was generated for.
        unsafe { (self.0)(ptrs.as_ptr(), scalars.as_ptr(), threads) }
    }
}

// -- thread state -----------------------------------------------------------------------------------------------------

/// The GIL during a run: held at first, released while long work runs, held again when this value is dropped.
pub struct Gil<'py> {
    saved: Option<*mut ffi::PyThreadState>,
    _py: PhantomData<Python<'py>>,
}

impl<'py> Gil<'py> {
    pub fn held(_py: Python<'py>) -> Gil<'py> {
        Gil { saved: None, _py: PhantomData }
    }

    pub fn release(&mut self) {
        if self.saved.is_none() {
            // SAFETY: this thread holds the GIL (`held` took a token and `saved` is empty).
            self.saved = Some(unsafe { ffi::PyEval_SaveThread() });
        }
    }

    /// Takes the GIL back and proves it.
    pub fn acquire(&mut self) -> Python<'py> {
        if let Some(state) = self.saved.take() {
            // SAFETY: the state that this thread saved in `release`.
            unsafe { ffi::PyEval_RestoreThread(state) };
        }
        // SAFETY: the GIL is held now, for as long as this value does not release it; callers use the token at once.
        unsafe { Python::assume_attached() }
    }
}

impl Drop for Gil<'_> {
    fn drop(&mut self) {
        self.acquire();
    }
}

/// While alive, operators called by this thread run below autograd and autocast: nothing is recorded and nothing cast.
/// Without torch's guard object, grad mode is switched off instead (autocast then stays as it is).
pub struct BelowAutograd {
    guard: Option<[u64; 4]>,
    grad_was_on: bool,
}

impl BelowAutograd {
    /// `mutates`: the operator writes to an argument, whose version has to be counted.
    pub fn enter(mutates: bool) -> BelowAutograd {
        let Ok(api) = api() else { return BelowAutograd { guard: None, grad_was_on: false } };
        if let (Some((make, _)), Some((mutating, other))) = (api.exclude_guard, api.excluded_keys) {
            let keys = if mutates { mutating } else { other };
            let mut guard = [0u64; 4];
            // SAFETY: the C++ object is two words; four are given.  A DispatchKeySet is one word, passed in a register.
            unsafe { make(guard.as_mut_ptr(), keys) };
            return BelowAutograd { guard: Some(guard), grad_was_on: false };
        }
        // SAFETY: plain getters and setters of this thread's grad mode.
        let on = unsafe { (api.grad_mode_is_enabled)() };
        if on {
            // SAFETY: as above.
            unsafe { (api.grad_mode_set_enabled)(false) };
        }
        BelowAutograd { guard: None, grad_was_on: on }
    }
}

impl Drop for BelowAutograd {
    fn drop(&mut self) {
        let Ok(api) = api() else { return };
        if let (Some(guard), Some((_, drop_guard))) = (self.guard.as_mut(), api.exclude_guard) {
            // SAFETY: made by `enter` on this thread and destroyed once; the object holds no pointer into itself.
            unsafe { drop_guard(guard.as_mut_ptr()) };
        }
        if self.grad_was_on {
            // SAFETY: a plain setter.
            unsafe { (api.grad_mode_set_enabled)(true) };
        }
    }
}

// -- operators --------------------------------------------------------------------------------------------------------

/// `view.dtype` of the C ABI.
#[derive(Clone, Copy)]
pub struct StorageCast(unsafe extern "C" fn(*mut c_void, i32, *mut *mut c_void) -> i32);

impl StorageCast {
    pub fn find() -> Outcome<StorageCast> {
        let name = "aoti_torch_cpu_view_dtype";
        let address = symbols::find(api()?.libtorch_cpu, name).ok_or_else(|| Failure(format!("this torch does not export {name}")))?;
        // SAFETY: declared as (handle, dtype, result) in every supported version.
        Ok(StorageCast(unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void, i32, *mut *mut c_void) -> i32>(address) }))
    }

    /// A flat tensor as another dtype.
    pub fn call(self, flat: Handle, dtype: i32) -> Outcome<Tensor> {
        let mut out = std::ptr::null_mut();
        // SAFETY: a live handle and room for a new reference.
        checked(unsafe { (self.0)(flat.0, dtype, &mut out) }, "aoti_torch_cpu_view_dtype")?;
        Ok(Tensor(out))
    }
}

/// A function of the C ABI that takes machine words and doubles and returns an error code.
#[derive(Clone, Copy)]
pub struct Shim {
    call: symbols::ShimFn,
    name: &'static str,
}

pub const SHIM_WORDS: usize = 24;
pub const SHIM_FLOATS: usize = 8;

impl Shim {
    /// None where the loaded torch does not export it, or where the calling convention is not one that `call` knows.
    pub fn find(name: &'static str) -> Option<Shim> {
        if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
            return None;
        }
        let address = symbols::find(api().ok()?.libtorch_cpu, name)?;
        // SAFETY: the address of a C function; see `call` for the signature.
        let call = unsafe { std::mem::transmute::<*mut c_void, symbols::ShimFn>(address) };
        Some(Shim { call, name })
    }

    /// Calls the function with `words` as its pointer and integer arguments in order and `floats` as its doubles.
    ///
    /// The System V x86-64 and AAPCS64 conventions pass integers and doubles in separate register files, integers
    /// beyond the registers in 8-byte stack slots, and let the caller clean up: surplus arguments are harmless.
    pub fn call(self, words: &[usize], floats: &[f64]) -> Outcome<()> {
        if words.len() > SHIM_WORDS || floats.len() > SHIM_FLOATS {
            return Err(Failure(format!("{}: too many arguments", self.name)));
        }
        let mut w = [0usize; SHIM_WORDS];
        w[..words.len()].copy_from_slice(words);
        let mut f = [0f64; SHIM_FLOATS];
        f[..floats.len()].copy_from_slice(floats);
        // SAFETY: the caller (plan/aten.rs) encodes the arguments by a schema that equals, as text, the one that this
        // function was declared for; pointers are to live memory for the duration of the call.
        let code = unsafe {
            (self.call)(
                w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13], w[14], w[15],
                w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23], f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7],
            )
        };
        checked(code, self.name)
    }
}

/// An owned handle from a word that a shim or the dispatcher returned; None for null.
pub fn adopt(word: usize) -> Option<Tensor> {
    (word != 0).then_some(Tensor(word as *mut c_void))
}

/// The argument stack of one dispatcher call; what `push` allocates is consumed by `call`.
pub struct Stack {
    values: Vec<u64>,
}

impl Stack {
    pub fn with_capacity(n: usize) -> Stack {
        Stack { values: Vec::with_capacity(n) }
    }

    pub fn push(&mut self, value: u64) {
        self.values.push(value);
    }

    /// Calls the operator; the first `n_results` words of the stack are then its results.
    pub fn call(mut self, name: &CStr, overload: &CStr, n_results: usize) -> Outcome<Vec<u64>> {
        let api = api()?;
        self.values.resize(self.values.len().max(n_results), 0);
        let stack = self.values.as_mut_ptr();
        // SAFETY: the stack holds one value an argument, encoded by the schema (plan/aten.rs), and has room for the
        // results; both names are NUL-terminated.
        let code = match (api.call_dispatcher_versioned, api.call_dispatcher) {
            (Some(call), _) => unsafe { call(name.as_ptr(), overload.as_ptr(), stack, api.abi_version) },
            // SAFETY: as above.
            (None, Some(call)) => unsafe { call(name.as_ptr(), overload.as_ptr(), stack) },
            (None, None) => return Err(Failure("this torch exports no aoti_torch_call_dispatcher".into())),
        };
        checked(code, "aoti_torch_call_dispatcher")?;
        self.values.truncate(n_results);
        Ok(self.values)
    }
}

/// True when arguments of list type can be encoded.
pub fn has_lists() -> bool {
    api().is_ok_and(|api| api.list_new.is_some() && api.list_push.is_some())
}

pub fn has_dispatcher() -> bool {
    api().is_ok_and(|api| api.call_dispatcher_versioned.is_some() || api.call_dispatcher.is_some())
}

/// A new reference to the tensor as a stack value.
pub fn encode_tensor(handle: Handle) -> Outcome<u64> {
    Ok(handle.to_owned()?.into_raw() as u64)
}

/// A present optional: a heap cell that the callee frees.
pub fn encode_some(value: u64) -> Outcome<u64> {
    let mut cell: *mut u64 = std::ptr::null_mut();
    match api()?.new_stable_ivalue {
        // SAFETY: room for the pointer.
        Some(new) => checked(unsafe { new(&mut cell) }, "torch_new_stable_ivalue")?,
        // SAFETY: before 2.13 the callee frees with `delete`, which is `free` in glibc's libstdc++.
        None => cell = unsafe { libc::malloc(8) }.cast(),
    }
    if cell.is_null() {
        return Err(Failure("out of memory".into()));
    }
    // SAFETY: a fresh cell of 8 bytes.
    unsafe { cell.write(value) };
    Ok(cell as u64)
}

/// A list of encoded values; the callee frees it.
pub fn encode_list(values: impl ExactSizeIterator<Item = Outcome<u64>>) -> Outcome<u64> {
    let api = api()?;
    let (Some(new), Some(push)) = (api.list_new, api.list_push) else {
        return Err(Failure("this torch cannot encode lists".into()));
    };
    let mut list = std::ptr::null_mut();
    // SAFETY: room for the new list.
    checked(unsafe { new(values.len(), &mut list) }, "torch_new_list_reserve_size")?;
    for value in values {
        // SAFETY: the list made above, not yet given away.
        checked(unsafe { push(list, value?) }, "torch_list_push_back")?;
    }
    Ok(list as u64)
}

/// A string; the callee frees it.
pub fn encode_string(text: &CStr) -> Outcome<u64> {
    let new = api()?.string_new.ok_or_else(|| Failure("this torch cannot encode strings".into()))?;
    let mut out = std::ptr::null_mut();
    // SAFETY: the text and its length; room for the new string.
    checked(unsafe { new(text.as_ptr(), text.to_bytes().len(), &mut out) }, "torch_new_string_handle")?;
    Ok(out as u64)
}

pub fn has_strings() -> bool {
    api().is_ok_and(|api| api.string_new.is_some())
}

/// The tensors of a list that an operator returned; frees the list.
pub fn decode_tensor_list(value: u64) -> Outcome<Vec<Option<Tensor>>> {
    let api = api()?;
    let (Some(size), Some(get), Some(delete)) = (api.list_size, api.list_get, api.list_delete) else {
        return Err(Failure("this torch cannot decode lists".into()));
    };
    let list = value as *mut c_void;
    let mut n = 0usize;
    // SAFETY: a list that the dispatcher returned, owned by us until the delete below.
    checked(unsafe { size(list, &mut n) }, "torch_list_size")?;
    let mut out = Vec::with_capacity(n);
    for i in 0..n {
        let mut word = 0u64;
        // SAFETY: as above, `i` in range.
        checked(unsafe { get(list, i, &mut word) }, "torch_list_get_item")?;
        out.push(adopt(word as usize));
    }
    // SAFETY: deleted once; the elements were adopted above.
    checked(unsafe { delete(list) }, "torch_delete_list")?;
    Ok(out)
}

/// The value of a getter such as `aoti_torch_dtype_float32`; None where this torch does not have it.
pub fn code_of(symbol: &str) -> Option<i32> {
    let address = symbols::find(api().ok()?.libtorch_cpu, symbol)?;
    // SAFETY: the C ABI declares these getters as `int32_t f(void)`.
    let get = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> i32>(address) };
    Some(get())
}
