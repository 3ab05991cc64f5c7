//! A set has the elements of the frozenset `arg`.

use super::fallback::or_false;
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct SetEquals(Obj);

impl Kind for SetEquals {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(SetEquals(cx.adopt(arg.to_tuple()?)))
    }
    fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
        walk.hold();
        or_false(value.len().map(|n| n == self.0.tuple_len()))
            && self.0.tuple_items().all(|element| or_false(value.contains(element)))
    }
}
