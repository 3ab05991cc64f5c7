//! Events of dicts.  From CPython 3.12 on, a watched dict calls back before it changes and when it dies.
//!
//! In: dicts, each with a tag.  Out: `FirstEvent`, which has the tag of the first dict that changes or dies.  Until then each
//! of them is alive and unchanged.  All of them share one of the interpreter's eight callbacks, taken when the first
//! dict is watched.  If no callback is left (see `available`), dict versions are used instead.
//!
//! The callback finds the subscribers by the dict's address.  A dying dict removes its entry.  The callback runs with
//! the GIL, in the middle of any change of the dict, also during garbage collection.  So it only sets a mark and
//! touches no object.  A subscription ends with its `FirstEvent`.  The last subscription of a dict unwatches the dict, which
//! is then still alive.

use super::object::Obj;
use std::cell::Cell;
use std::rc::Rc;

/// The first event of the dicts that a recording depends on.
#[derive(Default)]
pub struct FirstEvent {
    heard: Rc<Cell<Option<u32>>>,
    dicts: Vec<usize>,
}

impl FirstEvent {
    /// The tag of the first dict that changed or died.
    #[inline]
    pub fn heard(&self) -> Option<u32> {
        self.heard.get()
    }

    /// The number of watched dicts.
    pub fn len(&self) -> usize {
        self.dicts.len()
    }

    /// Subscribes to a dict (once for each dict).  False if the dict cannot be watched.
    pub fn watch(&mut self, dict: Obj, tag: u32) -> bool {
        let subscribed = registry::subscribe(dict, &self.heard, tag);
        if subscribed {
            self.dicts.push(dict.id());
        }
        subscribed
    }
}

impl Drop for FirstEvent {
    fn drop(&mut self) {
        registry::unsubscribe(&self.dicts, &self.heard);
    }
}

pub use registry::{available, tell, watched};

#[cfg(Py_3_12)]
mod registry {
    use crate::ffi::caught;
    use crate::ffi::object::{clear_error, Obj};
    use crate::ffi::sync::{held, GilCell};
    use pyo3::ffi::PyObject;
    use pyo3::Python;
    use smallvec::SmallVec;
    use std::cell::Cell;
    use std::collections::HashMap;
    use std::ffi::c_int;
    use std::hash::{BuildHasherDefault, Hasher};
    use std::rc::Rc;

    type Callback = unsafe extern "C" fn(c_int, *mut PyObject, *mut PyObject, *mut PyObject) -> c_int;

    /// The last value of PyDict_WatchEvent: the dict dies.
    const DEALLOCATED: c_int = 5;

    extern "C" {
        fn PyDict_AddWatcher(callback: Callback) -> c_int;
        fn PyDict_Watch(watcher: c_int, dict: *mut PyObject) -> c_int;
        fn PyDict_Unwatch(watcher: c_int, dict: *mut PyObject) -> c_int;
        #[cfg_attr(not(Py_3_13), link_name = "_Py_IsFinalizing")]
        fn Py_IsFinalizing() -> c_int;
    }

    type EventCell = Rc<Cell<Option<u32>>>;
    /// The subscribers of a dict, each with its tag.
    type Asked = SmallVec<[(EventCell, u32); 1]>;

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
        /// The id of the callback; negative if none was left; None if not requested yet.
        watcher: Option<c_int>,
        /// Live watched dicts, by address, with their subscribers.
        dicts: HashMap<usize, Asked, BuildHasherDefault<Address>>,
        /// A dict that lives for ever, and a function that is called at each of its events.
        told: Option<(usize, fn())>,
    }

    static REGISTRY: GilCell<Option<Registry>> = GilCell::new(None);

    fn with<R>(py: Python<'_>, f: impl FnOnce(&mut Registry) -> R) -> R {
        REGISTRY.with(py, |registry| f(registry.get_or_insert_default()))
    }

    /// Keeps a pending exception pending.
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
        // SAFETY: *gil*: the interpreter calls, before it changes the dict.
        caught::or_report((), || with(unsafe { held() }, heard));
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
    pub fn available(py: Python<'_>) -> bool {
        with(py, |r| r.watcher().is_some())
    }

    /// The number of dicts that are watched now.
    pub fn watched(py: Python<'_>) -> usize {
        with(py, |r| r.dicts.len())
    }

    pub fn subscribe(dict: Obj, heard: &EventCell, tag: u32) -> bool {
        with(dict.py(), |r| {
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

    /// Calls `tell` before each later change of this dict, which lives for ever, and of no other dict.  `tell` must
    /// touch no object.  False if no callback is left.
    pub fn tell(dict: Obj, tell: fn()) -> bool {
        with(dict.py(), |r| {
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

    pub fn unsubscribe(dicts: &[usize], heard: &EventCell) {
        if dicts.is_empty() {
            return;
        }
        // SAFETY: has no preconditions.  When the interpreter finalizes, dicts die without an event.
        let ends = unsafe { Py_IsFinalizing() } != 0;
        // SAFETY: *gil*: a recording is dropped with its tree, or after a check.
        with(unsafe { held() }, |r| {
            for dict in dicts {
                let Some(asked) = r.dicts.get_mut(dict) else { continue };
                asked.retain(|(other, _)| !Rc::ptr_eq(other, heard));
                if !asked.is_empty() {
                    continue;
                }
                r.dicts.remove(dict);
                let told = r.told.is_some_and(|(told, _)| told == *dict);
                if let Some(watcher) = r.watcher.filter(|w| *w >= 0 && !ends && !told) {
                    // SAFETY: *gil*; a dict in the registry is alive, since its death would have removed it; no Python
                    // code runs.
                    unsafe { PyDict_Unwatch(watcher, *dict as *mut PyObject) };
                }
            }
        });
    }
}

#[cfg(not(Py_3_12))]
mod registry {
    use super::{Cell, Obj, Rc};
    use pyo3::Python;

    pub fn available(_: Python<'_>) -> bool {
        false
    }
    pub fn watched(_: Python<'_>) -> usize {
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
