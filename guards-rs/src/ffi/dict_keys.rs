//! Code that a read of a dict, or of an instance's dict, may run.  Comparing keys runs their `__eq__`.  On CPython
//! 3.11, creating a dict may also start the garbage collector; from 3.12 on it waits for the next bytecode.

use super::object::{clear_error, Obj, Owned, Res};
use pyo3::ffi::*;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, Ordering};

// pycore_dict.h: the kind of the table follows a reference count and two bytes of sizes.  Kind 0 allows keys of any
// type.
const KIND: usize = size_of::<usize>() + 2;

#[inline]
fn kind(dict: Obj) -> u8 {
    let keys = dict.id() + offset_of!(PyDictObject, ma_used) + 2 * size_of::<usize>();
    // SAFETY: *live*; callers checked that it is a dict, which always has a table.
    unsafe { *((*(keys as *const usize) + KIND) as *const u8) }
}

/// 0: unknown; 1: the kind is not at the expected place; 2: it is.
static KNOWN: AtomicU8 = AtomicU8::new(0);

/// Whether the table of a dict states that all keys are exact strings.
#[inline]
pub fn are_strings(dict: Obj) -> bool {
    match KNOWN.load(Ordering::Relaxed) {
        2 => kind(dict) != 0,
        0 => probe() && kind(dict) != 0,
        _ => false,
    }
}

#[cold]
fn probe() -> bool {
    let look = || -> Res<bool> {
        let (text, number, none) = (Owned::interned("a")?, Owned::int(7)?, Owned::none());
        let (strings, mixed, empty) = (Owned::dict()?, Owned::dict()?, Owned::dict()?);
        strings.dict_set(text.get(), none.get())?;
        let before = kind(mixed.get());
        mixed.dict_set(text.get(), none.get())?;
        let still = kind(mixed.get());
        mixed.dict_set(number.get(), none.get())?;
        Ok([kind(strings.get()), kind(empty.get()), before, still].iter().all(|k| matches!(k, 1 | 2))
            && kind(mixed.get()) == 0)
    };
    let works = look().unwrap_or_else(|_| {
        clear_error();
        false
    });
    KNOWN.store(1 + u8::from(works), Ordering::Relaxed);
    works
}

/// Whether reading the instance dict of an object would create the dict.
#[cfg(not(Py_3_12))]
#[inline]
pub fn is_to_be_made(o: Obj) -> bool {
    const MANAGED_DICT: std::ffi::c_ulong = 1 << 4;
    // SAFETY: *live*; objects of such classes have the pointer to their inline values four words before the object.
    o.class_flag(MANAGED_DICT) && unsafe { *(o.id() as *const usize).sub(4) } != 0
}

#[cfg(Py_3_12)]
#[inline]
pub fn is_to_be_made(_: Obj) -> bool {
    false
}

extern "C" {
    fn PyGC_Disable() -> std::ffi::c_int;
    fn PyGC_Enable() -> std::ffi::c_int;
}

/// While this value is alive, the garbage collector does not start.
pub struct NoCollector(bool);

impl NoCollector {
    pub fn new() -> Self {
        // SAFETY: *gil*.
        NoCollector(unsafe { PyGC_Disable() } != 0)
    }
}

impl Drop for NoCollector {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: *gil*.
            unsafe { PyGC_Enable() };
        }
    }
}
