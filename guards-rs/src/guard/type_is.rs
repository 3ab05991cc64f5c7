//! `type(value) is arg`.

use super::fast::{Pins, Settled};
use super::{Build, Kind};
use crate::ffi::{Obj, Quiet, Res};

pub struct TypeIs(Obj);

impl Kind for TypeIs {
    const COST: u8 = 0;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(TypeIs(cx.keep(arg)))
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(value.class() == self.0)
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        pins.class(value);
        Settled::ByWords
    }
}
