//! Guard: the set has the elements of the frozenset `arg`, with the same types.

use super::fallback::{or_false, Oracle};
use super::{Build, Kind};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};
use crate::registered_object;

pub struct SetEquals {
    elements: Stored,
    /// `_set_holds` with its argument.  Needed where elements of other types may be equal: `1 == True == 1.0`.
    exact: Option<(Oracle, Stored)>,
}

impl Kind for SetEquals {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let elements = cx.adopt(arg.own().to_tuple()?);
        let texts = elements.get().tuple_items().all(|e| e.is_str_exact() || e.is_none());
        let exact =
            if texts { None } else { Some((cx.oracle(arg.py(), &registered_object::SET_HOLDS)?, cx.keep(arg))) };
        Ok(SetEquals { elements, exact })
    }
    fn holds(&self, _: Obj) -> Quiet<bool> {
        Err(MayRunPython)
    }
    fn ask(&self, value: &Owned) -> bool {
        or_false(value.len().map(|n| n == self.elements.get().tuple_len()))
            && self.elements.get().tuple_items().all(|element| or_false(value.contains(element)))
            && self.exact.as_ref().is_none_or(|(oracle, arg)| oracle.agrees(value.get(), arg.get()))
    }
}
