//! No class in the mro of the class `value` defines the name `arg`.

use super::fast::{Pins, Settled};
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct ClassAbsent(Obj);

impl Kind for ClassAbsent {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(ClassAbsent(cx.keep(arg)))
    }
    #[inline]
    fn holds(&self, value: Obj, _: &mut Walk) -> bool {
        value.is_type() && value.mro_lookup(self.0).is_none()
    }
    fn is_pure(&self) -> bool {
        true
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        if pins.class_attributes(value) {
            Settled::ByWords
        } else {
            Settled::Recheck
        }
    }
}
