//! Tensors: owned and borrowed handles, and their Python objects.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyType};
use smallvec::SmallVec;
use xxhash_rust::xxh3::xxh3_64;

use super::symbols::{self, api, Api};
use super::{checked, slow, thrown, Failure, Outcome};
use crate::ffi::team::share_out;
use crate::ffi::torch::named;

/// Bytes that are hashed at once.
const HASHED: usize = 1 << 17;

/// A hash of the hashes of blocks; it does not depend on the number of threads.
fn parallel_hash(bytes: &[u8], threads: usize) -> u64 {
    if bytes.len() <= HASHED {
        return xxh3_64(bytes);
    }
    let blocks = bytes.len().div_ceil(HASHED);
    let hashes: Vec<AtomicU64> = (0..blocks).map(|_| AtomicU64::new(0)).collect();
    share_out(threads, blocks, |i| {
        let block = &bytes[i * HASHED..bytes.len().min((i + 1) * HASHED)];
        hashes[i].store(xxh3_64(block), Ordering::Relaxed);
    });
    let words: Vec<u8> = hashes.iter().flat_map(|hash| hash.load(Ordering::Relaxed).to_le_bytes()).collect();
    xxh3_64(&words)
}

/// A borrowed `at::Tensor`: an input, a constant or a slot keeps it alive while this value is used.
#[derive(Clone, Copy, Debug)]
pub struct Handle(pub(super) *mut c_void);

// SAFETY: the TensorImpl behind a handle has an atomic reference count; torch itself reads its metadata from several
// threads.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// The result of counting a write.  `Refused`: an inference tensor must not be written here.  `Unknown`: the loaded
/// torch exports no function for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionCount {
    Yes,
    Refused,
    Unknown,
}

/// An owned `at::Tensor`, deleted on drop.
#[derive(Debug)]
pub struct Tensor(pub(super) *mut c_void);

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

/// The device of an allocation: a code of `aoti_torch_device_type_*` and an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    pub kind: i32,
    pub index: i32,
}

impl Tensor {
    pub fn handle(&self) -> Handle {
        Handle(self.0)
    }

    /// Gives the handle to C code that takes ownership.
    pub(super) fn into_raw(self) -> *mut c_void {
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

    /// The tensor as Python's `torch.Tensor` (a new reference).  Consumes the handle.  Needs the GIL.
    pub fn into_py(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let api = api()?;
        if let (Some(wrap), false) = (api.wrap_move.or(api.wrap_copy), slow()) {
            // SAFETY: `wrap` takes a reference to a TensorBase, which is the address in the handle; GIL held (`py`).  A
            // tensor that was moved from is undefined, and is deleted like any other when `self` is dropped.
            let Some(object) = (unsafe { thrown::caught(wrap, self.0) }) else {
                let unknown = || Failure("torch threw while it wrapped a tensor".into()).into();
                return Err(PyErr::take(py).unwrap_or_else(unknown));
            };
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
        let steal =
            py.import("torch")?.getattr("_C")?.getattr("_aoti")?.getattr("alloc_tensor_by_stealing_from_void_ptr")?;
        // SAFETY: the pointer is not null; the capsule has no destructor, the callee takes the handle over.
        let capsule = unsafe {
            let capsule = ffi::PyCapsule_New(self.into_raw(), std::ptr::null(), None);
            Bound::from_owned_ptr_or_err(py, capsule)?
        };
        steal.call1((capsule,))
    }
}

/// Bytes from the first element to the end of the last one, for dimensions of (size, stride).  0 without elements.
pub fn extent(dims: impl Iterator<Item = (i64, i64)> + Clone, itemsize: i64) -> Outcome<usize> {
    if dims.clone().any(|(size, _)| size == 0) {
        return Ok(0);
    }
    let further = |sum: i64, (size, stride): (i64, i64)| sum.checked_add(size.checked_sub(1)?.checked_mul(stride)?);
    let items = dims.clone().try_fold(1i64, further);
    let bytes = items.and_then(|n| n.checked_mul(itemsize)).and_then(|n| usize::try_from(n).ok());
    bytes.ok_or_else(|| {
        let (sizes, strides): (Vec<i64>, Vec<i64>) = dims.unzip();
        Failure(format!(
            "a tensor of sizes {sizes:?} and strides {strides:?}, {itemsize} bytes an item, is larger than memory (2**63 - 1 bytes)"
        ))
    })
}

/// `c10::DeviceType::CPU`.
const HOST: i32 = 0;

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

    /// The size of one dimension.  None if there is no such dimension.
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

    /// Bytes of an item.
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

    /// Addresses of the first byte and of the end.  Both are equal for a tensor without elements.
    pub fn span(self) -> Outcome<(usize, usize)> {
        let start = self.data_ptr()?;
        let bytes = self.extent()?;
        let end =
            start.checked_add(bytes).ok_or_else(|| Failure(format!("a tensor of {bytes} bytes at {start:#x}")))?;
        Ok((start, end))
    }

    /// Bytes from the first element to the end of the last one.
    fn extent(self) -> Outcome<usize> {
        let api = api()?;
        let mut dims: SmallVec<[(i64, i64); 8]> = SmallVec::new();
        for dim in 0..self.dim() {
            let (mut size, mut stride) = (0, 0);
            // SAFETY: a live handle, an existing dimension, and room for each result.
            let codes = unsafe { ((api.get_size)(self.0, dim, &mut size), (api.get_stride)(self.0, dim, &mut stride)) };
            checked(codes.0, "aoti_torch_get_size")?;
            checked(codes.1, "aoti_torch_get_stride")?;
            dims.push((size, stride));
        }
        extent(dims.iter().copied(), self.itemsize()?)
    }

    /// A hash of the bytes from the first element to the end of the last one, computed by up to `threads` threads.
    pub fn hash(self, threads: usize) -> Outcome<u64> {
        let (start, end) = self.span()?;
        if start == end {
            return Ok(0);
        }
        // SAFETY: a dense tensor holds these bytes while the handle lives.  Another thread that writes them meanwhile
        // races with the operator that reads them, as in eager.
        let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, end - start) };
        Ok(parallel_hash(bytes, threads))
    }

    /// Whether the storage contains all elements of the tensor.
    pub fn is_backed(self) -> bool {
        let needed = || -> Outcome<bool> {
            let behind = self.storage_offset().checked_mul(self.itemsize()?).and_then(|n| usize::try_from(n).ok());
            let bytes = self.extent()?;
            let fits =
                behind.and_then(|n| n.checked_add(bytes)).is_some_and(|n| n as u64 <= self.storage_size() as u64);
            Ok(bytes == 0 || (fits && self.data_ptr()? != 0))
        };
        needed().unwrap_or(false)
    }

    /// Addresses of the first byte and of the end of the storage.
    pub fn storage_span(self) -> Outcome<(usize, usize)> {
        let size = self.storage_size().max(0) as usize;
        if size == 0 {
            return Ok((0, 0));
        }
        let start = self.data_ptr()?.wrapping_sub((self.storage_offset() * self.itemsize()?) as usize);
        Ok((start, start.wrapping_add(size)))
    }

    /// The number in a host tensor with one element of this floating-point dtype, and the addresses of its bytes.
    /// `wide`: double precision.  None for any other tensor.
    pub fn number(self, dtype: i32, wide: bool) -> Option<(f64, (usize, usize))> {
        if self.dtype() != dtype || self.device_kind() != HOST || self.numel() != 1 {
            return None;
        }
        let (start, (first, last)) = (self.data_ptr().ok()?, self.storage_span().ok()?);
        let bytes = if wide { 8 } else { 4 };
        if start == 0 || start < first || start + bytes > last {
            return None;
        }
        // SAFETY: the storage, which lives as long as the tensor, has these bytes; all bit patterns are floats.
        let value = unsafe {
            match wide {
                true => std::ptr::read_unaligned(start as *const f64),
                false => f64::from(std::ptr::read_unaligned(start as *const f32)),
            }
        };
        Some((value, (start, start + bytes)))
    }

    pub fn sizes(self) -> Vec<i64> {
        (0..self.dim()).filter_map(|dim| self.size(dim)).collect()
    }

    pub fn has_sizes(self, sizes: &[i64]) -> bool {
        self.dim() == sizes.len() as i64 && (0..).zip(sizes).all(|(dim, size)| self.size(dim) == Some(*size))
    }

    /// Whether the tensor has these strides, ignoring strides that are never read.  `sizes` must be its own sizes.
    pub fn has_strides(self, sizes: &[i64], strides: &[i64]) -> bool {
        let Ok(api) = api() else { return false };
        let same = |dim: i64, stride: i64| {
            let mut found = 0;
            // SAFETY: a live handle, an existing dimension, and room for the result.
            unsafe { (api.get_stride)(self.0, dim, &mut found) == 0 && found == stride }
        };
        sizes.contains(&0)
            || (0..).zip(sizes.iter().zip(strides)).all(|(dim, (size, stride))| *size == 1 || same(dim, *stride))
    }

    /// Whether `stride()` of the tensor is `strides`, also in dimensions of size 1.
    pub fn strides_are(self, strides: &[i64]) -> bool {
        let Ok(api) = api() else { return false };
        let same = |(dim, stride): (i64, &i64)| {
            let mut found = 0;
            // SAFETY: a live handle, an existing dimension, and room for the result.
            unsafe { (api.get_stride)(self.0, dim, &mut found) == 0 && found == *stride }
        };
        self.dim() == strides.len() as i64 && (0..).zip(strides).all(same)
    }

    /// Increments the tensor's version for a write.
    pub fn count_version(self) -> VersionCount {
        let Ok(api) = api() else { return VersionCount::Unknown };
        let (Some(bump), Some(is_inference), Some(in_mode), false) =
            (api.bump_version, api.is_inference, api.in_inference_mode, slow())
        else {
            return VersionCount::Unknown;
        };
        // SAFETY: a live tensor; these read and count.  `bump` would throw only for a tensor without a counter, which
        // an inference tensor is.
        unsafe {
            if !is_inference(self.0) {
                bump(self.0);
            } else if !in_mode() {
                return VersionCount::Refused;
            }
        }
        VersionCount::Yes
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

    /// Whether the tensor's values are stored in memory as they are: it is not sparse, negated, without memory, ...
    #[inline]
    pub fn is_dense(self) -> bool {
        let Ok(Api { keys: Some(keys), .. }) = api() else {
            return self.numel() == 0 || self.data_ptr().is_ok_and(|address| address != 0);
        };
        // SAFETY: a live handle addresses an `at::Tensor`, which is a pointer to a TensorImpl; the probe has verified
        // the offset on several tensors.
        let set = unsafe { *(*self.0.cast::<*const u8>()).add(keys.offset).cast::<u64>() };
        set & !keys.dense == 0
    }

    /// A tensor with the same values and its own memory.
    #[cold]
    pub fn materialised(self) -> Outcome<Tensor> {
        let made = self.copied()?;
        if made.handle().is_dense() {
            return Ok(made);
        }
        Err(Failure("a tensor without memory, which no kernel can read".into()))
    }

    pub fn strides(self) -> Outcome<Vec<i64>> {
        let api = api()?;
        let stride = |dim| {
            let mut stride = 0;
            // SAFETY: a live handle, an existing dimension, and room for the result.
            checked(unsafe { (api.get_stride)(self.0, dim, &mut stride) }, "aoti_torch_get_stride")?;
            Ok(stride)
        };
        (0..self.dim()).map(stride).collect()
    }

    /// A copy with the same sizes and strides.
    pub fn copied(self) -> Outcome<Tensor> {
        let mut index = 0;
        // SAFETY: a live handle and room for the result.
        checked(unsafe { (api()?.get_device_index)(self.0, &mut index) }, "aoti_torch_get_device_index")?;
        let device = Device { kind: self.device_kind(), index };
        let made = Tensor::empty_strided(&self.sizes(), &self.strides()?, self.dtype(), device)?;
        made.handle().copy_from(self)?;
        Ok(made)
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

/// A borrowed reference to a live Python object.  The engine passes graph inputs as such references.
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

    /// The tensor of the object.  Borrowed if its offset in the object is known, otherwise an owned handle.
    pub fn tensor(self, py: Python<'_>) -> PyResult<UnwrappedTensor> {
        let api = api()?;
        if !self.is_tensor(py)? {
            // SAFETY: a live object.
            let kind = unsafe { PyType::from_borrowed_type_ptr(py, ffi::Py_TYPE(self.0)) };
            return Err(PyTypeError::new_err(format!("expected a torch.Tensor, got {}", kind.name()?)));
        }
        if let (Some(offset), false) = (api.tensor_offset, slow()) {
            // SAFETY: the object is a THPVariable, whose at::Tensor lies at this offset (probed on live tensors).
            return Ok(UnwrappedTensor::Borrowed(Handle(unsafe { self.0.cast::<u8>().add(offset) }.cast())));
        }
        self.tensor_slow(py).map(UnwrappedTensor::Owned)
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
        // SAFETY: a capsule that torch created around a new at::Tensor, nameless.
        let raw = unsafe { ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()) };
        if raw.is_null() {
            return Err(PyErr::fetch(py));
        }
        Ok(Tensor(raw))
    }
}

/// See `Object::tensor`.
pub enum UnwrappedTensor {
    Borrowed(Handle),
    Owned(Tensor),
}

/// `view.dtype` of the C ABI.
#[derive(Clone, Copy)]
pub struct StorageCast(unsafe extern "C" fn(*mut c_void, i32, *mut *mut c_void) -> i32);

impl StorageCast {
    pub fn find() -> Outcome<StorageCast> {
        let name = "aoti_torch_cpu_view_dtype";
        let address = named(name).ok_or_else(|| Failure(format!("this torch does not export {name}")))?;
        // SAFETY: declared as (handle, dtype, result) in every supported version.
        Ok(StorageCast(unsafe {
            std::mem::transmute::<usize, unsafe extern "C" fn(*mut c_void, i32, *mut *mut c_void) -> i32>(address)
        }))
    }

    /// Views a flat tensor as another dtype.
    pub fn call(self, flat: Handle, dtype: i32) -> Outcome<Tensor> {
        let mut out = std::ptr::null_mut();
        // SAFETY: a live handle and room for a new reference.
        checked(unsafe { (self.0)(flat.0, dtype, &mut out) }, "aoti_torch_cpu_view_dtype")?;
        Ok(Tensor(out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(dims: &[(i64, i64)], itemsize: i64) -> Option<usize> {
        extent(dims.iter().copied(), itemsize).ok()
    }

    #[test]
    fn an_extent_reaches_to_the_last_element() {
        assert_eq!(bytes(&[(3, 5), (5, 1)], 4), Some(60));
        assert_eq!(bytes(&[(3, 10), (5, 1)], 4), Some(100));
        assert_eq!(bytes(&[], 8), Some(8));
        assert_eq!(bytes(&[(1 << 60, 0)], 2), Some(2));
        assert_eq!(bytes(&[(0, 7), (i64::MAX, i64::MAX)], 8), Some(0));
    }

    #[test]
    fn an_extent_beyond_the_range_is_a_failure_that_names_sizes() {
        for dims in [&[(i64::MAX, 1)][..], &[(2, i64::MAX), (2, 1)], &[(1 << 32, 1 << 32)], &[(i64::MIN, 1)]] {
            assert_eq!(bytes(dims, 8), None);
        }
        let failure = extent([(1i64 << 61, 1)].into_iter(), 8).err().map(|Failure(text)| text);
        assert!(failure.is_some_and(|text| text.contains("sizes [2305843009213693952]") && text.contains("2**63 - 1")));
    }

    #[test]
    fn an_extent_to_the_left_of_its_start_is_a_failure() {
        assert_eq!(bytes(&[(3, -1)], 4), None);
    }

    #[test]
    fn the_hash_is_one_for_all_numbers_of_threads() {
        let mut bytes = vec![7u8; 5 * HASHED + 3];
        let hash = parallel_hash(&bytes, 1);
        for threads in [0, 2, 3, 64] {
            assert_eq!(parallel_hash(&bytes, threads), hash);
        }
        for at in [0, HASHED, 5 * HASHED + 2] {
            bytes[at] += 1;
            assert_ne!(parallel_hash(&bytes, 2), hash);
            bytes[at] -= 1;
        }
        assert_ne!(parallel_hash(&bytes[1..], 2), hash);
    }
}
