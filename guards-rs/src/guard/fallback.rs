//! Checks that the Python evaluator (`ir/guards.py`) does: rare types, and forced slow paths.

use crate::ffi::object::clear_error;
use crate::ffi::{Obj, Owned, Res};

/// A function of the Python evaluator, as a kind stores it.
pub struct Oracle(pub Owned);

impl Oracle {
    /// Whether `function(a, b)` is true.  An exception counts as false, as in the evaluator.  Callers hold both
    /// arguments.
    pub fn agrees(&self, a: Obj, b: Obj) -> bool {
        or_false(self.0.call(&[a, b], None).and_then(|r| r.is_true()))
    }
}

pub fn or_false(result: Res<bool>) -> bool {
    result.unwrap_or_else(|_| {
        clear_error();
        false
    })
}

pub fn or_none<T>(result: Res<T>) -> Option<T> {
    result.map_err(|_| clear_error()).ok()
}
