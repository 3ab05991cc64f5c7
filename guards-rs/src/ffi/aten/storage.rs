//! Storages: which one a tensor has, and references that keep one alive.
//!
//! In: a `Handle`.  Out: a `Pin`: the memory that the tensor has now is not freed before the pin is dropped, whatever becomes
//! of the tensor (`set_`, `.data =`).  Example: a plan pins its inputs before it releases the GIL.
//!
//! torch's C ABI has no handle of a storage.  Two ways:
//! - *counted*: the reference count of the StorageImpl is raised and lowered here, by two atomic instructions.  Where the
//!   words lie is probed (`probe`).  The count is lowered here only while somebody else holds a reference, so that nothing is
//!   freed here: the last reference is handed to a tensor, which torch deletes.
//! - *viewed*: a tensor without elements on the same storage: a hundred times the price, by the C ABI alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::OnceLock;

use pyo3::prelude::*;

use super::symbols::api;
use super::{code_of, slow, Device, Failure, Handle, Outcome, Tensor};
use crate::ffi::torch::probe_bytes;

/// Where the pointer to the StorageImpl lies in a TensorImpl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storages {
    offset: usize,
}

/// Where the count of strong references lies in a StorageImpl: behind the pointer to its virtual functions
/// (c10/util/intrusive_ptr.h).  The low 32 bits of the word are the count.
const COUNT: usize = 8;
const STRONG: u64 = (1 << 32) - 1;
/// Set while the object has a Python object, which holds a reference of its own: then torch acts at one reference, not at none.
const HAS_OBJECT: u64 = 1 << 63;

/// A reference to a storage, or to none (of a tensor without memory).
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
    // SAFETY: private to this file: callers hold a reference to the storage; `probe` has found an atomic count at this place.
    unsafe { &*((storage + COUNT) as *const AtomicU64) }
}

/// Gives one reference back; false where that is torch's to do: it is the last one, or the last but the Python object's.
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

/// A tensor without elements, of which views are made that take a storage over.  Lives as long as the process.
fn empty() -> Outcome<&'static Tensor> {
    static EMPTY: OnceLock<Tensor> = OnceLock::new();
    if let Some(empty) = EMPTY.get() {
        return Ok(empty);
    }
    let unknown = || Failure("this torch names no dtype uint8".into());
    let (byte, kind) = (code_of("aoti_torch_dtype_uint8"), code_of("aoti_torch_device_type_cpu"));
    let (byte, kind) = (byte.ok_or_else(unknown)?, kind.ok_or_else(unknown)?);
    let made = Tensor::empty_strided(&[0], &[1], byte, Device { kind, index: 0 })?;
    Ok(EMPTY.get_or_init(|| made))
}

/// torch gives the reference back: a tensor takes it over and is deleted.
#[cold]
fn hand_over(storage: usize) {
    let taker = empty().and_then(|empty| empty.handle().reinterpret(&[0], &[1], 0));
    let (Ok(taker), Some(Storages { offset })) = (taker, api().ok().and_then(|api| api.storages)) else {
        return; // no memory for a tensor: the storage stays
    };
    // SAFETY: `taker` is a fresh view that nobody else sees; its word is a reference to the storage of `empty`, which is alive
    // for ever, so that a reference to it is given back by counting.  The word then owns the reference of the pin.
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

    /// A number of the storage that the tensor has now, 0 for none: equal numbers are one storage while it lives.
    #[inline]
    pub fn storage(self) -> usize {
        match api().ok().and_then(|api| api.storages) {
            // SAFETY: a live TensorImpl; `probe` has found the pointer at this place.
            Some(Storages { offset }) if !slow() => unsafe { *self.implementation().byte_add(offset) },
            _ => self.storage_span().map_or(0, |span| span.0),
        }
    }

    /// Keeps the storage that the tensor has now.  Needs the GIL: nobody replaces the storage meanwhile.
    #[inline]
    pub fn pin(self, _py: Python<'_>) -> Outcome<Pin> {
        if api()?.storages.is_none() || slow() {
            return self.pin_by_view();
        }
        let counted = self.storage();
        if counted != 0 {
            // A storage that a tensor holds has one reference at least; one with a Python object two: none of torch's actions
            // at the first reference is due here.
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

// Tensors that differ in what the probe could take for a storage.
const SAMPLES: &std::ffi::CStr = c"[(t, t._cdata, t.untyped_storage()._cdata) for t in (lambda torch: [
    torch.empty(3), torch.empty(2, 3, dtype=torch.float64).t(), torch.empty(5, 7, dtype=torch.int64)[1:, 2:],
    torch.nn.Parameter(torch.empty(4, 6)), torch.empty(0, dtype=torch.uint8),
])(__import__('torch'))]";

/// Where storages are; None where tensors disagree, or a count does not count.
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
