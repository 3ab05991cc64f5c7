//! Guard `type(value) is arg`.  If `arg` is a weak reference, its referent is compared; a dead referent fails for ever.

use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::{Obj, Quiet, Res, Stored};

pub enum TypeIs {
    Strong(Stored),
    Weak(Stored),
}

impl Kind for TypeIs {
    const COST: u8 = 0;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let arg = cx.keep(arg);
        Ok(if arg.get().is_weakref() { TypeIs::Weak(arg) } else { TypeIs::Strong(arg) })
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(match self {
            TypeIs::Strong(class) => value.class() == class.get(),
            TypeIs::Weak(reference) => reference.get().weakref_target() == Some(value.class()),
        })
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        pins.class(value);
        PinnedAnswer::ByWords
    }
}
