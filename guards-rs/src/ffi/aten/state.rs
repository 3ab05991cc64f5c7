//! Thread state that a run changes and restores on every path: the GIL, and the dispatch keys.

use std::marker::PhantomData;

use pyo3::ffi;
use pyo3::prelude::*;

use super::symbols::api;

/// The GIL during a run.  Held at first, released during long work, and held again when this value is dropped.
pub struct Gil<'py> {
    saved: Option<*mut ffi::PyThreadState>,
    _py: PhantomData<Python<'py>>,
}

impl<'py> Gil<'py> {
    pub fn held(_py: Python<'py>) -> Gil<'py> {
        Gil { saved: None, _py: PhantomData }
    }

    pub fn is_released(&self) -> bool {
        self.saved.is_some()
    }

    pub fn release(&mut self) {
        if self.saved.is_none() {
            // SAFETY: this thread holds the GIL (`held` took a token and `saved` is empty).
            self.saved = Some(unsafe { ffi::PyEval_SaveThread() });
        }
    }

    /// Takes the GIL again and returns its token.
    pub fn acquire(&mut self) -> Python<'py> {
        if let Some(state) = self.saved.take() {
            // SAFETY: the state that this thread saved in `release`.
            unsafe { ffi::PyEval_RestoreThread(state) };
        }
        // SAFETY: the GIL is held now, until this value releases it; callers use the token at once.
        unsafe { Python::assume_attached() }
    }
}

impl Drop for Gil<'_> {
    fn drop(&mut self) {
        self.acquire();
    }
}

/// While this value is alive, operators called by this thread run below autograd and autocast: they record and cast
/// nothing.  If torch's guard object is missing, grad mode is switched off instead; autocast then stays active.
pub struct BelowAutograd {
    guard: Option<[u64; 4]>,
    grad_was_on: bool,
}

impl BelowAutograd {
    /// `mutates`: whether the operator writes to an argument, so that its version must be counted.
    pub fn enter(mutates: bool) -> BelowAutograd {
        let Ok(api) = api() else { return BelowAutograd { guard: None, grad_was_on: false } };
        if let (Some((make, _)), Some((mutating, other))) = (api.exclude_guard, api.excluded_keys) {
            let keys = if mutates { mutating } else { other };
            let mut guard = [0u64; 4];
            // SAFETY: the C++ object is two words; four are given.  A DispatchKeySet is one word, passed in a register.
            unsafe { make(guard.as_mut_ptr(), keys) };
            return BelowAutograd { guard: Some(guard), grad_was_on: false };
        }
        // SAFETY: plain getters and setters of this thread's grad mode.
        let on = unsafe { (api.grad_mode_is_enabled)() };
        if on {
            // SAFETY: as above.
            unsafe { (api.grad_mode_set_enabled)(false) };
        }
        BelowAutograd { guard: None, grad_was_on: on }
    }
}

impl Drop for BelowAutograd {
    fn drop(&mut self) {
        let Ok(api) = api() else { return };
        if let (Some(guard), Some((_, drop_guard))) = (self.guard.as_mut(), api.exclude_guard) {
            // SAFETY: created by `enter` on this thread and destroyed once; the object holds no pointer into itself.
            unsafe { drop_guard(guard.as_mut_ptr()) };
        }
        if self.grad_was_on {
            // SAFETY: a plain setter.
            unsafe { (api.grad_mode_set_enabled)(true) };
        }
    }
}
