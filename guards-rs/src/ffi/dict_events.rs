//! Events of dicts: from CPython 3.12 on a dict calls back, before it changes and when it dies.
//!
//! In: dicts, each with a tag.  Out: `News`, which hears of the first of them that changes or dies, by its tag; until then
//! each of them lives and holds what it held.  One of the eight callbacks that an interpreter has is taken for all of them,
//! when the first dict is watched; where none is left (`available`), versions have to do.
//!
//! The callback finds who asked by the dict's address: a dict that dies says so, and its entry goes.  It runs with the GIL,
//! in the middle of whatever changes the dict, also of the collector: it marks, and touches no object.  A subscription ends
//! with its `News`; the last one of a dict takes the mark off the dict, which is alive then.

use super::object::Obj;
use std::cell::Cell;
use std::rc::Rc;

/// What became of the dicts that a recording depends on.
#[derive(Default)]
pub struct News {
    heard: Rc<Cell<Option<u32>>>,
    dicts: Vec<usize>,
}

impl News {
    /// The tag of a dict that changed or died.
    #[inline]
    pub fn heard(&self) -> Option<u32> {
        self.heard.get()
    }

    /// How many dicts are watched.
    pub fn len(&self) -> usize {
        self.dicts.len()
    }

    /// Asks for news of a dict (once for each); false where there are none.
    pub fn watch(&mut self, dict: Obj, tag: u32) -> bool {
        let subscribed = registry::subscribe(dict, &self.heard, tag);
        if subscribed {
            self.dicts.push(dict.id());
        }
        subscribed
    }
}

impl Drop for News {
    fn drop(&mut self) {
        registry::unsubscribe(&self.dicts, &self.heard);
    }
}

pub use registry::{available, tell, watched};

#[cfg(Py_3_12)]
mod registry {
    use crate::ffi::caught;
    use crate::ffi::object::{clear_error, Obj};
    use crate::ffi::sync::GilCell;
    use pyo3::ffi::PyObject;
    use smallvec::SmallVec;
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::ffi::c_int;
    use std::hash::{BuildHasherDefault, Hasher};
    use std::rc::Rc;

    type Callback = unsafe extern "C" fn(c_int, *mut PyObject, *mut PyObject, *mut PyObject) -> c_int;

    /// The last of PyDict_WatchEvent: the dict dies.
    const DEALLOCATED: c_int = 5;

    extern "C" {
        fn PyDict_AddWatcher(callback: Callback) -> c_int;
        fn PyDict_Watch(watcher: c_int, dict: *mut PyObject) -> c_int;
        fn PyDict_Unwatch(watcher: c_int, dict: *mut PyObject) -> c_int;
        #[cfg_attr(not(Py_3_13), link_name = "_Py_IsFinalizing")]
        fn Py_IsFinalizing() -> c_int;
    }

    type Heard = Rc<Cell<Option<u32>>>;
    /// Who asked about a dict, each with the tag to hear.
    type Asked = SmallVec<[(Heard, u32); 1]>;

    /// Hashes an address.
    #[derive(Default)]
    pub struct Address(u64);

    impl Hasher for Address {
        fn write(&mut self, bytes: &[u8]) {
            bytes.iter().for_each(|b| self.write_usize(usize::from(*b)));
        }
        fn write_usize(&mut self, at: usize) {
            self.0 = (self.0 ^ (at as u64 >> 4)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        fn finish(&self) -> u64 {
            self.0
        }
    }

    #[derive(Default)]
    struct Registry {
        /// Unknown, or the number of the callback; negative where none was left.
        watcher: Option<c_int>,
        /// Dicts that are alive and watched, by address, and who asked.
        dicts: HashMap<usize, Asked, BuildHasherDefault<Address>>,
        /// A dict that lives for ever, and what hears of each of its events.
        told: Option<(usize, fn())>,
    }

    static REGISTRY: GilCell<Option<Registry>> = GilCell::new(None);

    fn with<R>(f: impl FnOnce(&mut Registry) -> R) -> R {
        REGISTRY.with(|registry| f(registry.get_or_insert_default()))
    }

    /// An exception that is set stays set.
    unsafe extern "C" fn on_event(event: c_int, dict: *mut PyObject, _: *mut PyObject, _: *mut PyObject) -> c_int {
        let heard = |r: &mut Registry| {
            if let Some((_, tell)) = r.told.filter(|(told, _)| *told == dict as usize) {
                tell();
            }
            let Some(asked) = r.dicts.get(&(dict as usize)) else { return };
            for (heard, tag) in asked {
                heard.set(heard.get().or(Some(*tag)));
            }
            if event == DEALLOCATED {
                r.dicts.remove(&(dict as usize));
            }
        };
        caught::or_report((), || with(heard));
        0
    }

    impl Registry {
        fn watcher(&mut self) -> Option<c_int> {
            let made = *self.watcher.get_or_insert_with(|| {
                // SAFETY: *gil*; the callback is a function of this library, which is never unloaded.
                let made = unsafe { PyDict_AddWatcher(on_event) };
                if made < 0 {
                    clear_error();
                }
                made
            });
            (made >= 0).then_some(made)
        }
    }

    /// Whether the interpreter had a callback left.
    pub fn available() -> bool {
        with(|r| r.watcher().is_some())
    }

    /// How many dicts are watched now.
    pub fn watched() -> usize {
        with(|r| r.dicts.len())
    }

    pub fn subscribe(dict: Obj, heard: &Heard, tag: u32) -> bool {
        with(|r| {
            let Some(watcher) = r.watcher() else { return false };
            // SAFETY: *gil*, *live*; callers pass dicts; no Python code runs.
            if unsafe { PyDict_Watch(watcher, dict.ptr()) } < 0 {
                clear_error();
                return false;
            }
            r.dicts.entry(dict.id()).or_default().push((heard.clone(), tag));
            true
        })
    }

    /// From now on `tell` is called before each change of this dict, which lives for ever, and of no other; false where there is
    /// no callback left.  It touches no object.
    pub fn tell(dict: Obj, tell: fn()) -> bool {
        with(|r| {
            let Some(watcher) = r.watcher() else { return false };
            // SAFETY: *gil*, *live*; callers pass a dict; no Python code runs.
            if unsafe { PyDict_Watch(watcher, dict.ptr()) } < 0 {
                clear_error();
                return false;
            }
            r.told = Some((dict.id(), tell));
            true
        })
    }

    pub fn unsubscribe(dicts: &[usize], heard: &Heard) {
        if dicts.is_empty() {
            return;
        }
        // SAFETY: has no preconditions.  At the end of the interpreter dicts die without a word.
        let ends = unsafe { Py_IsFinalizing() } != 0;
        with(|r| {
            for dict in dicts {
                let Some(asked) = r.dicts.get_mut(dict) else { continue };
                asked.retain(|(other, _)| !Rc::ptr_eq(other, heard));
                if !asked.is_empty() {
                    continue;
                }
                r.dicts.remove(dict);
                let told = r.told.is_some_and(|(told, _)| told == *dict);
                if let Some(watcher) = r.watcher.filter(|w| *w >= 0 && !ends && !told) {
                    // SAFETY: *gil*; a dict in the registry lives, for it would have told its death; no Python code runs.
                    unsafe { PyDict_Unwatch(watcher, *dict as *mut PyObject) };
                }
            }
        });
    }
}

#[cfg(not(Py_3_12))]
mod registry {
    use super::{Cell, Obj, Rc};

    pub fn available() -> bool {
        false
    }
    pub fn watched() -> usize {
        0
    }
    pub fn subscribe(_: Obj, _: &Rc<Cell<Option<u32>>>, _: u32) -> bool {
        false
    }
    pub fn tell(_: Obj, _: fn()) -> bool {
        false
    }
    pub fn unsubscribe(_: &[usize], _: &Rc<Cell<Option<u32>>>) {}
}
