//! `bool(value) is arg`, of types whose truth is harmless to ask for.

use super::fallback::or_none;
use super::fast::{Pins, Settled};
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct Truth(bool);

impl Kind for Truth {
    const COST: u8 = 1;
    fn build(arg: Obj, _: &mut Build) -> Res<Self> {
        Ok(Truth(arg.is_true()?))
    }
    #[inline]
    fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
        if !value.is_plain_constant() {
            walk.hold();
        }
        or_none(value.is_true()) == Some(self.0)
    }
    fn settle(&self, value: Obj, _: &mut Pins) -> Settled {
        if value.is_plain_constant() {
            Settled::ByWords
        } else {
            Settled::RecheckPython
        }
    }
}
