//! `value is arg`; with a weak reference as arg, its target, and a dead target fails for ever.

use super::fast::{Pins, Settled};
use super::{Build, Kind};
use crate::ffi::{Obj, Quiet, Res};

pub enum IdIs {
    Strong(Obj),
    Weak(Obj),
}

impl Kind for IdIs {
    const COST: u8 = 0;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let arg = cx.keep(arg);
        Ok(if arg.is_weakref() { IdIs::Weak(arg) } else { IdIs::Strong(arg) })
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(match self {
            IdIs::Strong(arg) => value == *arg,
            IdIs::Weak(arg) => arg.weakref_target() == Some(value),
        })
    }
    fn settle(&self, _: Obj, _: &mut Pins) -> Settled {
        Settled::ByWords
    }
}
