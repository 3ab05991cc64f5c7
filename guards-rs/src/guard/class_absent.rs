//! Guard: no class in the mro of the class `value` defines the name `arg`.

use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::mro::ClassAttribute;
use crate::ffi::{Obj, Owned, Quiet, Res};

pub struct ClassAbsent(ClassAttribute);

impl Kind for ClassAbsent {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(ClassAbsent(ClassAttribute::new(cx.keep(arg).get())))
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(value.is_type() && self.0.find(value)?.is_none())
    }
    fn ask(&self, value: &Owned) -> bool {
        value.get().is_type() && self.0.ask(value).is_none()
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        if pins.class_attributes(value) {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
