//! A set has the elements of the frozenset `arg`, which are of the same types.

use super::fallback::{ask, or_false, oracle};
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct SetEquals {
    elements: Obj,
    /// `_set_holds` with its argument, where elements of other types may be equal: `1 == True == 1.0`.
    exact: Option<(Obj, Obj)>,
}

impl Kind for SetEquals {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let elements = cx.adopt(arg.to_tuple()?);
        let texts = elements.tuple_items().all(|e| e.is_str_exact() || e.is_none());
        let exact = if texts { None } else { Some((cx.adopt(oracle(c"_set_holds")?), cx.keep(arg))) };
        Ok(SetEquals { elements, exact })
    }
    fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
        walk.hold();
        or_false(value.len().map(|n| n == self.elements.tuple_len()))
            && self.elements.tuple_items().all(|element| or_false(value.contains(element)))
            && self.exact.is_none_or(|(oracle, arg)| ask(oracle, value, arg, walk))
    }
}
