//! Guard `same_constant(value, arg)`: same type and value; NaN equals itself; 0.0 does not equal -0.0.

use super::fallback::Oracle;
use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};
use crate::registered_object;

pub struct Equals {
    constant: Stored,
    /// `same_constant` itself, unless the constant is a plain number, a string, a tuple of these, or a list of all
    /// these.
    oracle: Option<Oracle>,
}

/// Compares floats as strictly as `float.hex` does.
fn same_f64(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn is_native(constant: Obj) -> bool {
    constant.is_plain_constant() || (constant.is_tuple_exact() && constant.tuple_items().all(is_native))
}

/// Whether a constant is a list of native constants.
fn is_native_list(constant: Obj) -> bool {
    constant.is_list_exact() && list_items(constant).all(is_native)
}

fn list_items(list: Obj) -> impl Iterator<Item = Obj> {
    (0..list.list_len()).map_while(move |i| list.list_item(i))
}

/// `same_constant` for constants that `is_native` or `is_native_list` accepts.
pub fn same_native(a: Obj, b: Obj) -> bool {
    if a == b {
        return true;
    }
    if a.class() != b.class() {
        return false;
    }
    if b.is_float_exact() {
        return same_f64(a.as_f64(), b.as_f64());
    }
    if b.is_complex_exact() {
        let ((ar, ai), (br, bi)) = (a.as_complex(), b.as_complex());
        return same_f64(ar, br) && same_f64(ai, bi);
    }
    if b.is_tuple_exact() {
        return a.tuple_len() == b.tuple_len() && a.tuple_items().zip(b.tuple_items()).all(|(x, y)| same_native(x, y));
    }
    if b.is_list_exact() {
        return a.list_len() == b.list_len() && list_items(a).zip(list_items(b)).all(|(x, y)| same_native(x, y));
    }
    a.plain_equals(b)
}

impl Kind for Equals {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let constant = cx.keep(arg);
        let oracle = if is_native(constant.get()) || is_native_list(constant.get()) {
            None
        } else {
            Some(cx.oracle(arg.py(), &registered_object::SAME_CONSTANT)?)
        };
        Ok(Equals { constant, oracle })
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        match self.oracle {
            _ if value == self.constant.get() => Ok(true),
            None => Ok(same_native(value, self.constant.get())),
            Some(_) if value.class() != self.constant.get().class() => Ok(false),
            Some(_) => Err(MayRunPython),
        }
    }
    fn ask(&self, value: &Owned) -> bool {
        self.oracle.as_ref().is_some_and(|oracle| oracle.agrees(value.get(), self.constant.get()))
    }
    fn settle(&self, value: Obj, _: &mut Pins) -> PinnedAnswer {
        // A value stays equal if it is the compared object itself, or of an immutable type.
        if (value == self.constant.get() || self.oracle.is_none()) && !self.constant.get().is_list_exact() {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
