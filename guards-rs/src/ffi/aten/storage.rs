//! Storages: the storage of a tensor, and references that keep a storage alive.
//!
//! In: a `Handle`.  Out: a `Pin`.  The tensor's current memory is not freed before the pin is dropped, even if the
//! tensor gets other memory (`set_`, `.data =`).  Example: a plan pins its inputs before it releases the GIL.
//!
//! torch's C ABI has no handle of a storage.  Two methods are used:
//! - *counted*: two atomic instructions here increment and decrement the reference count of the StorageImpl.  `probe`
//!   finds the place of the count.  The count is decremented here only while another reference exists, so nothing is
//!   freed here: the last reference is handed to a tensor, which torch deletes.
//! - *viewed*: a tensor without elements on the same storage.  A hundred times slower, but needs only the C ABI.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use pyo3::prelude::*;

use super::symbols::api;
use super::{code_of, slow, Device, Failure, Handle, Outcome, Tensor};
use crate::ffi::torch::probe_bytes;

/// Offset of the pointer to the StorageImpl in a TensorImpl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storages {
    offset: usize,
}

/// Offset of the reference count in a StorageImpl: behind the pointer to its virtual functions
/// (c10/util/intrusive_ptr.h).  The low 32 bits of the word are the number of strong references.
const COUNT: usize = 8;
const STRONG: u64 = (1 << 32) - 1;
/// Set while the object has a Python object, which holds a reference of its own.  Then torch acts at one reference, not
/// at zero.
const HAS_OBJECT: u64 = 1 << 63;

/// A reference to a storage.  Empty for a tensor without memory.
#[derive(Debug, Default)]
pub struct Pin {
    counted: usize,
    _viewed: Option<Box<Tensor>>,
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        if self.counted != 0 && !let_go(count_of(self.counted)) {
            hand_over(self.counted);
        }
    }
}

/// The count of a live StorageImpl.
fn count_of<'a>(storage: usize) -> &'a AtomicU64 {
    // SAFETY: private to this file: callers hold a reference to the storage; `probe` has found an atomic count at this
    // place.
    unsafe { &*((storage + COUNT) as *const AtomicU64) }
}

/// Drops one reference.  False if torch must drop it: it is the last one, or the last one besides the Python object's.
fn let_go(count: &AtomicU64) -> bool {
    let mut now = count.load(Ordering::Relaxed);
    loop {
        let least = if now & HAS_OBJECT == 0 { 1 } else { 2 };
        if now & STRONG <= least {
            return false;
        }
        match count.compare_exchange_weak(now, now - 1, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
}

/// A tensor without elements.  Views of it take over storages.  Lives as long as the process.
fn empty() -> Outcome<&'static Tensor> {
    static EMPTY: OnceLock<Tensor> = OnceLock::new();
    if let Some(empty) = EMPTY.get() {
        return Ok(empty);
    }
    let unknown = || Failure("this torch has no uint8".into());
    let (byte, kind) = (code_of("aoti_torch_dtype_uint8"), code_of("aoti_torch_device_type_cpu"));
    let (byte, kind) = (byte.ok_or_else(unknown)?, kind.ok_or_else(unknown)?);
    let made = Tensor::empty_strided(&[0], &[1], byte, Device { kind, index: 0 })?;
    Ok(EMPTY.get_or_init(|| made))
}

/// Lets torch drop the reference: a tensor takes it over and is deleted.
#[cold]
fn hand_over(storage: usize) {
    let taker = empty().and_then(|empty| empty.handle().reinterpret(&[0], &[1], 0));
    let (Ok(taker), Some(Storages { offset })) = (taker, api().ok().and_then(|api| api.storages)) else {
        return; // no memory for a tensor: the storage is leaked
    };
    // SAFETY: `taker` is a new view that no other code sees.  Its word is a reference to the storage of `empty`, which
    // lives for ever, so decrementing its count is enough.  The word then owns the reference of the pin.
    unsafe {
        let word = taker.handle().implementation().cast::<u8>().cast_mut().add(offset).cast::<usize>();
        count_of(word.replace(storage)).fetch_sub(1, Ordering::AcqRel);
    }
}

impl Handle {
    /// The TensorImpl.
    fn implementation(self) -> *const usize {
        // SAFETY: a live handle addresses an `at::Tensor`, which is a pointer to a TensorImpl.
        unsafe { *self.0.cast::<*const usize>() }
    }

    /// An id of the tensor's current storage; 0 for none.  Equal ids mean the same storage while it is alive.
    #[inline]
    pub fn storage(self) -> usize {
        match api().ok().and_then(|api| api.storages) {
            // SAFETY: a live TensorImpl; `probe` has found the pointer at this place.
            Some(Storages { offset }) if !slow() => unsafe { *self.implementation().byte_add(offset) },
            _ => self.storage_span().map_or(0, |span| span.0),
        }
    }

    /// The number of references to the tensor's storage: of tensors, and one of Python's storage object.  None if this
    /// torch's storages cannot be counted.
    #[inline]
    pub fn storage_holders(self) -> Option<u64> {
        api().ok()?.storages.filter(|_| !slow())?;
        let storage = self.storage();
        (storage != 0).then(|| count_of(storage).load(Ordering::Acquire) & STRONG)
    }

    /// Keeps the tensor's current storage alive.  Needs the GIL, so that no other thread replaces the storage
    /// meanwhile.
    #[inline]
    pub fn pin(self, _py: Python<'_>) -> Outcome<Pin> {
        if api()?.storages.is_none() || slow() {
            return self.pin_by_view();
        }
        let counted = self.storage();
        if counted != 0 {
            // A tensor's storage has at least one reference; with a Python object, at least two.  So torch's actions at
            // the first reference do not apply here.
            count_of(counted).fetch_add(1, Ordering::Relaxed);
        }
        Ok(Pin { counted, _viewed: None })
    }

    #[cold]
    fn pin_by_view(self) -> Outcome<Pin> {
        if self.storage_size() == 0 {
            return Ok(Pin::default());
        }
        Ok(Pin { counted: 0, _viewed: Some(Box::new(self.reinterpret(&[0], &[1], 0)?)) })
    }
}

// Tensors that differ in every word that the probe could mistake for the storage.
const SAMPLES: &std::ffi::CStr = c"[(t, t._cdata, t.untyped_storage()._cdata) for t in (lambda torch: [
    torch.empty(3), torch.empty(2, 3, dtype=torch.float64).t(), torch.empty(5, 7, dtype=torch.int64)[1:, 2:],
    torch.nn.Parameter(torch.empty(4, 6)), torch.empty(0, dtype=torch.uint8),
])(__import__('torch'))]";

/// Finds the storage pointer.  None if tensors disagree, or if the count does not change as expected.
pub fn probe(py: Python<'_>, limit: usize) -> PyResult<Option<Storages>> {
    type Sample<'py> = (Bound<'py, PyAny>, usize, usize);
    let samples = py.eval(SAMPLES, None, None)?.extract::<Vec<Sample<'_>>>()?;
    let word = |address: usize| {
        let mut bytes = [0; 8];
        probe_bytes(address, &mut bytes).then(|| u64::from_ne_bytes(bytes))
    };
    let holds = |offset: &usize| samples.iter().all(|(_, imp, storage)| word(imp + offset) == Some(*storage as u64));
    let mut offsets = (8..limit).step_by(8).filter(holds);
    let (Some(offset), None) = (offsets.next(), offsets.next()) else { return Ok(None) };
    for (tensor, _, storage) in &samples {
        let views = |n: usize| (0..n).map(|_| tensor.call_method0("detach")).collect::<PyResult<Vec<_>>>();
        let strong = || word(storage + COUNT).map(|word| word & STRONG);
        let Some(before) = strong() else { return Ok(None) };
        for n in [1, 3] {
            let held = views(n)?;
            if strong() != Some(before + n as u64) {
                return Ok(None);
            }
            drop(held);
        }
        if strong() != Some(before) {
            return Ok(None);
        }
    }
    Ok(Some(Storages { offset }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(word: u64) -> (bool, u64) {
        let count = AtomicU64::new(word);
        (let_go(&count), count.into_inner())
    }

    #[test]
    fn the_last_reference_is_left_to_torch() {
        let weak = 1 << 32;
        assert_eq!(after(weak | 3), (true, weak | 2));
        assert_eq!(after(weak | 2), (true, weak | 1));
        assert_eq!(after(weak | 1), (false, weak | 1));
    }

    #[test]
    fn a_python_object_counts_as_the_last_holder() {
        let word = HAS_OBJECT | 1 << 32;
        assert_eq!(after(word | 3), (true, word | 2));
        assert_eq!(after(word | 2), (false, word | 2));
    }

    #[test]
    fn weak_references_do_not_count() {
        assert_eq!(after(7 << 32 | 1), (false, 7 << 32 | 1));
        assert_eq!(after(7 << 32 | 2), (true, 7 << 32 | 1));
    }
}
