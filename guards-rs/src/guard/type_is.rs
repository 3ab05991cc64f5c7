//! `type(value) is arg`.

use super::fast::{Pins, Settled};
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct TypeIs(Obj);

impl Kind for TypeIs {
    const COST: u8 = 0;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(TypeIs(cx.keep(arg)))
    }
    #[inline]
    fn holds(&self, value: Obj, _: &mut Walk) -> bool {
        value.class() == self.0
    }
    fn is_pure(&self) -> bool {
        true
    }
    fn class(&self) -> Option<Obj> {
        Some(self.0)
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        pins.class(value);
        Settled::ByWords
    }
}
