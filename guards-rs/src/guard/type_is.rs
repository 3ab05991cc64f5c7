//! `type(value) is arg`; with a weak reference as arg, its target, and a dead target fails for ever.

use super::fast::{Pins, Settled};
use super::{Build, Kind};
use crate::ffi::{Obj, Quiet, Res};

pub enum TypeIs {
    Strong(Obj),
    Weak(Obj),
}

impl Kind for TypeIs {
    const COST: u8 = 0;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let arg = cx.keep(arg);
        Ok(if arg.is_weakref() { TypeIs::Weak(arg) } else { TypeIs::Strong(arg) })
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(match self {
            TypeIs::Strong(class) => value.class() == *class,
            TypeIs::Weak(reference) => reference.weakref_target() == Some(value.class()),
        })
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        pins.class(value);
        Settled::ByWords
    }
}
