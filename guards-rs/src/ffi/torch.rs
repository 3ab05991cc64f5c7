//! torch's exported symbols, found by dlsym in the libraries that `import torch` loaded, and raw reads of tensors.

use super::object::{import, Obj, Res};
use std::ffi::{c_void, CStr, CString};
use std::sync::atomic::{AtomicBool, Ordering};

/// The first and last version of torch whose headers were read.  Return types and memory layouts are known for these
/// only.
const FIRST: (u32, u32) = (2, 11);
const LAST: (u32, u32) = (2, 15);

/// Whether the loaded torch is one of these versions.  False before `learn_version`.
static KNOWN: AtomicBool = AtomicBool::new(false);

/// Major and minor version, for example of `2.15.0+cpu`.
fn parsed(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next()?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    Some((major, minor[..digits].parse().ok()?))
}

fn is_known(version: &str) -> bool {
    parsed(version).is_some_and(|version| (FIRST..=LAST).contains(&version))
}

/// Reads the version of the loaded torch.  `symbol` finds no C++ functions in an unknown version.  For an unknown
/// version, the first call returns a warning.
pub fn learn_version() -> Res<Option<String>> {
    static TOLD: AtomicBool = AtomicBool::new(false);
    let version = import(c"torch")?.attr(c"__version__")?.repr();
    let version = version.trim_matches('\'');
    let known = is_known(version);
    KNOWN.store(known, Ordering::Relaxed);
    if known || TOLD.swap(true, Ordering::Relaxed) {
        return Ok(None);
    }
    let ((a, b), (c, d)) = (FIRST, LAST);
    Ok(Some(format!(
        "torch {version} is not a version that pycompiler knows ({a}.{b} to {c}.{d}): tensors are read by their attributes, \
         so calls are slower, not wrong"
    )))
}

/// Whether the version was read and is known.
pub fn has_known_version() -> bool {
    KNOWN.load(Ordering::Relaxed)
}

/// Address of an exported symbol of the loaded torch, or None.  The mangled name of a C++ function fixes the argument
/// types but not the return type; the name of a variable fixes no type.  So such symbols are found in known versions
/// only.
pub fn symbol(name: &CStr) -> Option<usize> {
    if name.to_bytes().starts_with(b"_Z") && !has_known_version() {
        return None;
    }
    exported(name)
}

/// The same in any version, for symbols whose name fixes everything: functions of the C ABI, constructors.
pub fn exported(name: &CStr) -> Option<usize> {
    const LIBRARIES: [&CStr; 4] = [c"libtorch_cpu.so", c"libtorch_python.so", c"libc10.so", c"libtorch_cuda.so"];
    LIBRARIES.iter().find_map(|library| {
        // SAFETY: NOLOAD only finds a loaded library by name; handles are never closed.
        unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() {
                return None;
            }
            let p = libc::dlsym(handle, name.as_ptr());
            (!p.is_null()).then_some(p as usize)
        }
    })
}

/// `symbol` for a Rust string.
pub fn named(name: &str) -> Option<usize> {
    symbol(&CString::new(name).ok()?)
}

/// Copies the bytes at `address` into `out`, through the kernel if possible.
///
/// False if the address is not mapped.  For the probe, which reads a few words of a live object beyond its known fields.
pub fn probe_bytes(address: usize, out: &mut [u8]) -> bool {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut c_void, iov_len: out.len() };
    // SAFETY: process_vm_readv validates the remote range itself and writes into `out` only.
    let n = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    if n == out.len() as isize {
        return true;
    }
    if std::io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) {
        return false;
    }
    // Sandboxes may refuse the system call; a live heap object is readable for its first words.
    // SAFETY: `address` is the start of a live object of at least `out.len()` bytes (see tensor_view: at most 200).
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, out.as_mut_ptr(), out.len()) };
    true
}

#[inline]
pub(super) fn load<T: Copy>(address: usize) -> T {
    // SAFETY: private to this file and `tensor_words`: callers pass addresses that the probe has verified for live tensors.
    unsafe { std::ptr::read_unaligned(address as *const T) }
}

/// Offsets in a tensor, all verified by the probe on several tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the `at::Tensor` in the Python object.
    pub handle: usize,
    /// Offsets in the TensorImpl: dispatch key set, dtype (u16), and `SizesAndStrides`.
    pub keys: usize,
    pub dtype: usize,
    pub sizes: usize,
    /// Offsets of autograd, if the probe found them.  A null metadata pointer means that no gradient is required.
    pub autograd: Option<Autograd>,
}

/// Offsets of the metadata pointer in the TensorImpl, and of the flag `requires_grad` in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Autograd {
    pub pointer: usize,
    pub flag: usize,
}

/// A tensor read through a verified layout.  Valid while the Python object is alive.
#[derive(Clone, Copy)]
pub struct RawTensor {
    imp: usize,
    layout: Layout,
}

/// A TensorImpl stores sizes, then strides, of at most this many dimensions inline.
pub(super) const INLINE_DIMS: usize = 5;

impl RawTensor {
    /// `t` must be a tensor; the caller has checked its class.
    #[inline]
    pub fn of(t: Obj, layout: Layout) -> RawTensor {
        RawTensor { imp: load(t.id() + layout.handle), layout }
    }

    #[inline]
    pub fn is_defined(self) -> bool {
        self.imp != 0
    }
    #[inline]
    pub fn keys(self) -> u64 {
        load(self.imp + self.layout.keys)
    }
    #[inline]
    pub fn dtype(self) -> i32 {
        i32::from(load::<u16>(self.imp + self.layout.dtype))
    }
    #[inline]
    pub fn dim(self) -> usize {
        load(self.imp + self.layout.sizes)
    }
    #[inline]
    pub fn sizes_strides(&self) -> (&[i64], &[i64]) {
        let (n, base) = (self.dim(), self.imp + self.layout.sizes + 8);
        let (sizes, strides) = if n <= INLINE_DIMS {
            (base, base + 8 * INLINE_DIMS)
        } else {
            let heap: usize = load(base);
            (heap, heap + 8 * n)
        };
        // SAFETY: the layout was verified: `n` words follow at both addresses while the tensor lives.
        unsafe {
            (std::slice::from_raw_parts(sizes as *const i64, n), std::slice::from_raw_parts(strides as *const i64, n))
        }
    }

    /// `TensorImpl::requires_grad()`.  Calls the exported symbol unless the metadata decide.
    #[inline]
    pub fn requires_grad(self, f: RequiresGrad) -> bool {
        if let Some(autograd) = self.layout.autograd {
            let metadata: usize = load(self.imp + autograd.pointer);
            if metadata == 0 || load::<u8>(metadata + autograd.flag) == 1 {
                return metadata != 0;
            }
        }
        // SAFETY: `bool TensorImpl::requires_grad() const` in the known versions, called on a live TensorImpl.
        unsafe { (f.0)(self.imp as *const c_void) }
    }
}

/// An exported function of torch by its mangled name, cast to a function type.  Makes the enclosing function return
/// None if the symbol is missing.
macro_rules! resolve {
    ($name:literal as $ty:ty) => {
        // SAFETY: torch keeps the signatures of its C functions stable (torch/csrc/inductor/aoti_torch/c/shim.h).  The
        // name of a C++ function fixes its arguments; its return type was read in the headers of the versions in which
        // `symbol` finds it.
        unsafe { std::mem::transmute::<usize, $ty>(symbol($name)?) }
    };
}

#[derive(Clone, Copy)]
pub struct RequiresGrad(unsafe extern "C" fn(*const c_void) -> bool);

impl RequiresGrad {
    pub fn find() -> Option<Self> {
        type Getter = unsafe extern "C" fn(*const c_void) -> bool;
        Some(RequiresGrad(resolve!(c"_ZNK3c1010TensorImpl13requires_gradEv" as Getter)))
    }
}

type GetI64 = unsafe extern "C" fn(usize, *mut i64) -> i32;
type GetI32 = unsafe extern "C" fn(usize, *mut i32) -> i32;
type GetPtr = unsafe extern "C" fn(usize, *mut *const i64) -> i32;

/// The stable C ABI, by handle (the address of an `at::Tensor`).  Every getter returns None if torch reports an error.
#[derive(Clone, Copy)]
pub struct CAbi {
    dim: GetI64,
    dtype: GetI32,
    device_index: GetI32,
    sizes: GetPtr,
    strides: GetPtr,
}

impl CAbi {
    pub fn find() -> Option<Self> {
        Some(CAbi {
            dim: resolve!(c"aoti_torch_get_dim" as GetI64),
            dtype: resolve!(c"aoti_torch_get_dtype" as GetI32),
            device_index: resolve!(c"aoti_torch_get_device_index" as GetI32),
            sizes: resolve!(c"aoti_torch_get_sizes" as GetPtr),
            strides: resolve!(c"aoti_torch_get_strides" as GetPtr),
        })
    }

    pub fn dtype(&self, handle: usize) -> Option<i32> {
        let mut v = 0;
        // SAFETY: a handle of a live tensor; the result goes to a local.
        (unsafe { (self.dtype)(handle, &mut v) } == 0).then_some(v)
    }
    pub fn device_index(&self, handle: usize) -> Option<i32> {
        let mut v = 0;
        // SAFETY: as in dtype.
        (unsafe { (self.device_index)(handle, &mut v) } == 0).then_some(v)
    }
    pub fn dim(&self, handle: usize) -> Option<usize> {
        let mut v = 0;
        // SAFETY: as in dtype.
        (unsafe { (self.dim)(handle, &mut v) } == 0).then_some(v as usize)
    }
    fn words(&self, f: GetPtr, handle: usize) -> Option<&[i64]> {
        let (n, mut p) = (self.dim(handle)?, std::ptr::null());
        // SAFETY: as in dtype; on success `p` has one word for each dimension (it may be null if there are none).
        unsafe {
            if f(handle, &mut p) != 0 {
                return None;
            }
            Some(if n == 0 { &[] } else { std::slice::from_raw_parts(p, n) })
        }
    }
    pub fn sizes(&self, handle: usize) -> Option<&[i64]> {
        self.words(self.sizes, handle)
    }
    pub fn strides(&self, handle: usize) -> Option<&[i64]> {
        self.words(self.strides, handle)
    }
}

pub(super) use resolve;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_known_by_major_and_minor() {
        for known in ["2.11.0", "2.13.1+cpu", "2.15.0+cu130", "2.15.0a0+git1234", "2.12"] {
            assert!(is_known(known), "{known}");
        }
        for other in ["2.10.2", "2.16.0.dev20270101", "3.0.0", "1.13.1", "", "2", "two.15", "2.x"] {
            assert!(!is_known(other), "{other}");
        }
    }

    #[test]
    fn a_version_may_have_letters_behind_its_minor_number() {
        assert_eq!(parsed("2.15rc1"), Some((2, 15)));
        assert_eq!(parsed("2.9.1"), Some((2, 9)));
        assert_eq!(parsed("2."), None);
    }

    #[test]
    fn functions_of_cpp_are_not_found_before_the_version_is_known() {
        assert!(!has_known_version());
        assert_eq!(symbol(c"_ZN3c108GradMode10is_enabledEv"), None);
    }
}
