//! Guard `bool(value) is arg`, for types whose `bool()` has no side effects.

use super::fallback::or_none;
use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::{Obj, Owned, Quiet, Res};

pub struct Truth(bool);

impl Kind for Truth {
    const COST: u8 = 1;
    fn build(arg: Obj, _: &mut Build) -> Res<Self> {
        Ok(Truth(arg.own().is_true()?))
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        value.plain_truth().map(|truth| truth == self.0)
    }
    fn ask(&self, value: &Owned) -> bool {
        or_none(value.is_true()) == Some(self.0)
    }
    fn settle(&self, value: Obj, _: &mut Pins) -> PinnedAnswer {
        if value.is_plain_constant() {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
