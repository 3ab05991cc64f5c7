//! Words of memory whose value proves that an object has not changed: dict versions, type pointers, container slots.
//!
//! A `Word` may be read only while the object that it lies in lives.  `guard/fast.rs` orders words so that each one is read
//! after the words that prove it alive; the versions of types are held by strong references.

use super::object::{clear_error, Obj, Owned, Raised, Res};
use pyo3::ffi::*;
use std::mem::offset_of;
use std::ptr::null_mut;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Word {
    at: usize,
    want: usize,
}

#[inline]
fn read(at: usize) -> usize {
    // SAFETY: private: `Word`s are made below, of live objects, and read in an order that proves them alive.
    unsafe { *(at as *const usize) }
}

/// Position of the first word that changed.
#[inline]
pub fn first_changed(words: &[Word]) -> Option<usize> {
    const STRIDE: usize = 4;
    let mut done = 0;
    // In order, for a word may prove that the next one is alive; four a turn, for the loop would cost as much as the words.
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

/// The version of a dict: unique to this dict in this state, for every mutation takes a new one.
pub fn dict_version(dict: Obj) -> Word {
    word(dict.id() + offset_of!(PyDictObject, ma_used) + size_of::<usize>())
}

pub fn class(o: Obj) -> Word {
    word(o.id() + offset_of!(PyObject, ob_type))
}

extern "C" {
    fn _PyObject_GetDictPtr(obj: *mut PyObject) -> *mut *mut PyObject;
}

/// The slot that holds the object's instance dict (callers got the dict by `Obj::instance_dict` just now).
pub fn dict_slot(o: Obj) -> Option<Word> {
    // SAFETY: *gil*, *live*; a null result is handled.
    let slot = unsafe { _PyObject_GetDictPtr(o.ptr()) };
    (!slot.is_null()).then(|| word(slot as usize))
}

pub fn list_length(list: Obj) -> Word {
    word(list.id() + offset_of!(PyVarObject, ob_size))
}

/// Storage, and the slot of an item that is in range.
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
}

pub fn weakref_target(reference: Obj) -> Word {
    word(reference.id() + offset_of!(WeakReference, target))
}

/// A weak reference, for types that have them.
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

/// The version of a type and its bases, when it has one now.
#[derive(Clone, Copy)]
pub struct TypeVersion {
    ty: Obj,
    version: u32,
}

impl TypeVersion {
    /// Callers looked an attribute up just now, which gives a type its version.
    pub fn of(ty: Obj) -> Option<TypeVersion> {
        let version = TypeVersion { ty, version: 0 }.read();
        (ty.is_type() && version != 0).then_some(TypeVersion { ty, version })
    }

    #[inline]
    fn read(self) -> u32 {
        // SAFETY: `of` checked that it is a type; the holder of this keeps it alive.
        unsafe { (*self.ty.ptr().cast::<PyTypeObject>()).tp_version_tag }
    }

    #[inline]
    pub fn unchanged(self) -> bool {
        self.read() == self.version
    }
}

/// Whether an object of this class can be given another class.
pub fn class_is_fixed(o: Obj) -> bool {
    // SAFETY: *gil*, *live*.
    unsafe {
        let ty = Py_TYPE(o.ptr());
        PyType_HasFeature(ty, Py_TPFLAGS_IMMUTABLETYPE) != 0 && PyModule_Check(o.ptr()) == 0
    }
}

// Every way to change a dict, by name, applied to `d`; and an instance that shares keys, changed through attributes.
const PROBE: &std::ffi::CStr = c"
import types
class Thing:
    def __init__(self):
        self.a = 1; self.b = 2
class Sub(dict): pass
def store(o, v):
    o.a = v
def plain():
    d = {'a': 1, 'b': 2}
    return d, [lambda: d.__setitem__('a', 3), lambda: d.__setitem__('c', 1), lambda: d.__delitem__('c'), lambda: d.pop('b'),
               lambda: d.setdefault('q', 1), lambda: d.update(a=9), lambda: d.update({'z': 1}), lambda: d.__ior__({'y': 2}),
               lambda: d.popitem(), lambda: d.clear(), lambda: d.__setitem__(1, 2)]
def sub():
    s = Sub(a=1)
    return s, [lambda: s.__setitem__('a', 3), lambda: dict.__setitem__(s, 'c', 1), lambda: s.pop('c')]
def instance(warm):
    o = Thing()
    for i in range(warm): store(Thing(), i)
    v = vars(o)
    for i in range(warm): store(o, i)
    return v, [lambda: store(o, 'x'), lambda: setattr(o, 'a', 6), lambda: setattr(o, 'new', 6), lambda: delattr(o, 'b'),
               lambda: object.__setattr__(o, 'a', 7), lambda: v.__setitem__('a', 8), lambda: store(o, 9)]
def module():
    m = types.ModuleType('m'); m.x = 1
    return vars(m), [lambda: setattr(m, 'x', 2), lambda: setattr(m, 'y', 2), lambda: delattr(m, 'y')]
def changes():
    return plain(), sub(), instance(0), instance(100), module()
";

/// Whether this interpreter's dicts have versions that every mutation changes.
pub fn dict_versions_work() -> bool {
    let probe = || -> Res<bool> {
        let scope = Owned::dict()?;
        let code = pyo3::Python::attach(|py| -> pyo3::PyResult<()> {
            py.run(PROBE, Some(&scope.to_bound(py).cast_into()?), None)
        });
        code?;
        let changes = scope.dict_get(&Owned::interned("changes")?)?.ok_or(Raised)?;
        for pair in changes.call(&[], None)?.to_tuple()?.tuple_items() {
            let (dict, steps) = (pair.tuple_item(0), pair.tuple_item(1).own().to_tuple()?);
            for step in steps.tuple_items() {
                let before = dict_version(dict);
                step.own().call(&[], None)?;
                if first_changed(&[before]).is_none() {
                    return Ok(false);
                }
            }
        }
        // Two fresh dicts never share a version.
        let (a, b) = (Owned::dict()?, Owned::dict()?);
        Ok(dict_version(*a).want != dict_version(*b).want)
    };
    probe().unwrap_or_else(|Raised| {
        clear_error();
        false
    })
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
