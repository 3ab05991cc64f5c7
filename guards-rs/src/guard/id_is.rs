//! Guard `value is arg`.  If `arg` is a weak reference, its referent is compared; a dead referent fails for ever.

use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::{Obj, Quiet, Res, Stored};

pub enum IdIs {
    Strong(Stored),
    Weak(Stored),
}

impl Kind for IdIs {
    const COST: u8 = 0;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let arg = cx.keep(arg);
        Ok(if arg.get().is_weakref() { IdIs::Weak(arg) } else { IdIs::Strong(arg) })
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(match self {
            IdIs::Strong(arg) => value == arg.get(),
            IdIs::Weak(arg) => arg.get().weakref_target() == Some(value),
        })
    }
    fn settle(&self, _: Obj, _: &mut Pins) -> PinnedAnswer {
        PinnedAnswer::ByWords
    }
}
