//! Words of memory whose values prove that an object has not changed: dict versions, type pointers, container slots.
//!
//! A `Word` may be read only while its object is alive.  `guard/fast/` orders words so that each one is read after the
//! words that prove its object alive.

use super::object::{clear_error, Obj, Owned, Raised, Stored};
use pyo3::ffi::*;
use std::mem::offset_of;
use std::ptr::null_mut;

/// The address of a word, and its recorded value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    at: usize,
    want: usize,
}

impl Word {
    /// Whether both words had the same value.
    pub fn had_value_of(self, other: Word) -> bool {
        self.want == other.want
    }
}

#[inline]
fn read(at: usize) -> usize {
    // SAFETY: private: `Word`s are created below, of live objects, and read in an order that proves them alive.
    unsafe { *(at as *const usize) }
}

/// Position of the first word that changed.
#[inline]
pub fn first_changed(words: &[Word]) -> Option<usize> {
    const STRIDE: usize = 4;
    let mut done = 0;
    // In order, because a word may prove the next one alive.  Four at a time, since a loop over single words doubles
    // the cost.
    for four in words.chunks_exact(STRIDE) {
        if !four.iter().all(|w| read(w.at) == w.want) {
            break;
        }
        done += STRIDE;
    }
    words[done..].iter().position(|w| read(w.at) != w.want).map(|i| done + i)
}

fn word(at: usize) -> Word {
    Word { at, want: read(at) }
}

/// The version of a dict, unique to this dict in this state.  Every mutation takes a new version if `dict_probe` says
/// so.
pub fn dict_version(dict: Obj) -> Word {
    word(version_word(dict))
}

/// The address of a dict's version.
pub(super) fn version_word(dict: Obj) -> usize {
    dict.id() + offset_of!(PyDictObject, ma_used) + size_of::<usize>()
}

pub fn class(o: Obj) -> Word {
    word(o.id() + offset_of!(PyObject, ob_type))
}

extern "C" {
    fn _PyObject_GetDictPtr(obj: *mut PyObject) -> *mut *mut PyObject;
}

/// The slot of the object's instance dict.  The caller has just read the dict by `Obj::instance_dict`.
pub fn dict_slot(o: Obj) -> Option<Word> {
    // SAFETY: *gil*, *live*; a null result is handled.
    let slot = unsafe { _PyObject_GetDictPtr(o.ptr()) };
    (!slot.is_null()).then(|| word(slot as usize))
}

pub fn list_length(list: Obj) -> Word {
    word(list.id() + offset_of!(PyVarObject, ob_size))
}

/// The storage pointer, and the slot of an item that is in range.
pub fn list_item(list: Obj, i: usize) -> [Word; 2] {
    let storage = word(list.id() + offset_of!(PyListObject, ob_item));
    [storage, word(storage.want + i * size_of::<usize>())]
}

#[repr(C)]
struct Cell {
    base: PyObject,
    contents: *mut PyObject,
}

pub fn cell(cell: Obj) -> Word {
    word(cell.id() + offset_of!(Cell, contents))
}

#[repr(C)]
struct WeakReference {
    base: PyObject,
    target: *mut PyObject,
    callback: *mut PyObject,
}

pub fn weakref_target(reference: Obj) -> Word {
    word(reference.id() + offset_of!(WeakReference, target))
}

/// Whether a weak reference has a callback.  Callers check that it is a weak reference.
pub fn weakref_calls_back(reference: Obj) -> bool {
    read(reference.id() + offset_of!(WeakReference, callback)) != 0
}

/// A weak reference to the object.  None if its type does not support them.
pub fn weakref(o: Obj) -> Option<Owned> {
    // SAFETY: *gil*, *live*.
    match unsafe { Owned::steal(PyWeakref_NewRef(o.ptr(), null_mut())) } {
        Ok(reference) => Some(reference),
        Err(Raised) => {
            clear_error();
            None
        }
    }
}

pub fn function_code(f: Obj) -> Word {
    word(f.id() + offset_of!(PyFunctionObject, func_code))
}
pub fn function_defaults(f: Obj) -> Word {
    word(f.id() + offset_of!(PyFunctionObject, func_defaults))
}
pub fn function_kwdefaults(f: Obj) -> Word {
    word(f.id() + offset_of!(PyFunctionObject, func_kwdefaults))
}

/// The version of a type, which no other type has.  The rest of its word is padding.
pub fn type_version(class: Obj) -> Word {
    word(class.id() + offset_of!(PyTypeObject, tp_version_tag))
}

/// Whether a class is a heap type defined in Python, which the garbage collector may free.  Callers pass a class.
pub fn may_end(class: Obj) -> bool {
    // SAFETY: *gil*, *live*; callers pass a type.
    let flags = unsafe { PyType_GetFlags(class.ptr().cast()) };
    flags & (Py_TPFLAGS_HEAPTYPE | Py_TPFLAGS_IMMUTABLETYPE) == Py_TPFLAGS_HEAPTYPE
}

/// The version of a type and its bases.  The recording owns the type (`Fast::held`).
#[derive(Clone, Copy)]
pub struct TypeVersion {
    ty: Stored,
    version: u32,
}

impl TypeVersion {
    /// None if the type has no version.  Callers have just looked up an attribute, which assigns a version.
    pub fn of(ty: Obj) -> Option<TypeVersion> {
        if !ty.is_type() {
            return None;
        }
        let version = TypeVersion { ty: ty.store(), version: 0 }.read();
        (version != 0).then_some(TypeVersion { ty: ty.store(), version })
    }

    #[inline]
    fn read(self) -> u32 {
        // SAFETY: `of` checked that it is a type; the holder of this value keeps it alive.
        unsafe { (*self.ty.get().ptr().cast::<PyTypeObject>()).tp_version_tag }
    }

    #[inline]
    pub fn unchanged(self) -> bool {
        self.read() == self.version
    }
}

/// Whether an object of this class can never get another class.
pub fn class_is_fixed(o: Obj) -> bool {
    // SAFETY: *gil*, *live*.
    unsafe {
        let ty = Py_TYPE(o.ptr());
        PyType_HasFeature(ty, Py_TPFLAGS_IMMUTABLETYPE) != 0 && PyModule_Check(o.ptr()) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_words_that_changed() {
        for n in 0..11 {
            let mut memory: Vec<usize> = (0..n).collect();
            let at = memory.as_mut_ptr();
            let words: Vec<Word> = (0..n).map(|i| word(at as usize + i * size_of::<usize>())).collect();
            assert_eq!(first_changed(&words), None);
            for i in (0..n).rev() {
                // SAFETY: `i` is below the length, and nothing else refers to the memory.
                unsafe { at.add(i).write(99) };
                assert_eq!(first_changed(&words), Some(i));
            }
        }
    }
}
