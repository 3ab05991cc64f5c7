//! Generated kernels: their libraries and functions, and the number of threads for them.

use std::ffi::{c_void, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

use super::symbols::{self, api};
use super::{Failure, Outcome};

/// A shared library of generated kernels.  Never unloaded, because its OpenMP threads may outlive any object.
pub struct Library(*mut c_void);

type RawKernel = unsafe extern "C" fn(*const usize, *const i64, i32) -> i64;

/// `int64_t symbol(void** ptrs, const int64_t* scalars, int32_t threads)`.  Returns 0, or a key of
/// `ir.plan.KERNEL_ERRORS`.
#[derive(Clone, Copy)]
pub struct KernelFn(RawKernel);

impl Library {
    pub fn open(path: impl AsRef<OsStr>) -> Outcome<Library> {
        let path = path.as_ref();
        let text = CString::new(path.as_bytes())
            .map_err(|_| Failure(format!("the path of the kernel library holds a NUL: {path:?}")))?;
        // SAFETY: dlopen runs the library's initialisers; this project's code generator built the library.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Failure(format!("cannot load the kernel library {}: {}", path.display(), symbols::dl_error())));
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
    /// The engine's own kernel for products of matrices.
    pub fn matrix_product() -> KernelFn {
        KernelFn(crate::ffi::product::matrix_product)
    }

    /// The engine's own kernel for convolutions.
    pub fn convolution() -> KernelFn {
        KernelFn(crate::ffi::convolution::convolution)
    }

    pub fn call(self, ptrs: &[usize], scalars: &[i64], threads: i32) -> i64 {
        // SAFETY: the plan passes one pointer for each slot and one integer for each scalar, as the kernel was
        // generated for.
        unsafe { (self.0)(ptrs.as_ptr(), scalars.as_ptr(), threads) }
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
