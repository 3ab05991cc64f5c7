//! Every `unsafe` line of the plan executor: torch's C ABI, kernels, scratch memory and the GIL.
//!
//! In: the libraries that `import torch` has loaded.  Out: safe types: `Tensor` (an owned handle), `Handle` (a borrowed
//! handle), `KernelFn`, `Scratch`, `Gil`, `BelowAutograd`.  `pytype` has the vectorcall type of `_native.Plan`.
//!
//! A handle is the address of an `at::Tensor`.  `dlsym` finds every symbol in the loaded libraries, so one build serves
//! all supported versions of torch.  A symbol that a version lacks has a fallback, named at the symbol.

mod call;
mod form;
mod handle;
mod kernel;
pub mod pytype;
mod scratch;
mod state;
pub mod storage;
mod symbols;
mod thrown;

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyRuntimeError;
use pyo3::PyErr;

use crate::ffi::torch::named;

pub use call::{
    adopt, decode_tensor_list, encode_list, encode_some, encode_string, encode_tensor, has_dispatcher, has_lists,
    has_strings, Shim, Stack, SHIM_FLOATS, SHIM_WORDS,
};
pub use form::Form;
pub use handle::{extent, Device, Handle, Object, StorageCast, Tensor, UnwrappedTensor, VersionCount};
pub use kernel::{num_threads, KernelFn, Library};
pub use scratch::Scratch;
pub use state::{BelowAutograd, Gil};
pub use storage::Pin;
pub use symbols::{api, dl_error, initialise, Keys};

/// The message of a failed call into torch.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

pub type Outcome<T> = Result<T, Failure>;

/// Whether a test forces the slow routes of wrapping and unwrapping.
static SLOW: AtomicBool = AtomicBool::new(false);

pub fn force_slow(on: bool) {
    SLOW.store(on, Ordering::Relaxed);
}

fn slow() -> bool {
    SLOW.load(Ordering::Relaxed)
}

/// Turns an error code of the C ABI into an outcome, with the message of the C++ exception if torch keeps it.
pub(super) fn checked(code: i32, call: &str) -> Outcome<()> {
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

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        PyRuntimeError::new_err(failure.0)
    }
}

/// The value of a getter such as `aoti_torch_dtype_float32`.  None if this torch lacks the getter.
pub fn code_of(symbol: &str) -> Option<i32> {
    let address = named(symbol)?;
    // SAFETY: the C ABI declares these getters as `int32_t f(void)`.
    let get = unsafe { std::mem::transmute::<usize, extern "C" fn() -> i32>(address) };
    Some(get())
}
