//! Guard: the two values are the same object.

use super::{Build, Relation};
use crate::ffi::{Obj, Res};

pub struct SameObject;

impl Relation for SameObject {
    fn build(_: Obj, _: &mut Build) -> Res<Self> {
        Ok(SameObject)
    }
    fn holds(&self, values: &[Obj]) -> bool {
        matches!(values, [first, second, ..] if first == second)
    }

    fn holds_beside(&self, pinned: &[usize], late: &[Obj]) -> bool {
        let mut all = pinned.iter().copied().chain(late.iter().map(|o| o.id()));
        let first = all.next();
        all.all(|id| Some(id) == first)
    }
}
