//! `arg not in value`, in the storage of a dict or of a subclass.

use super::fast::{Pins, Settled};
use super::source::dict_lookup;
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct DictAbsent(Obj);

impl Kind for DictAbsent {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(DictAbsent(cx.keep(arg)))
    }
    #[inline]
    fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
        dict_lookup(value, self.0, walk).map(|found| found.is_some()) == Some(false)
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        match (self.0.is_plain_key(), pins.dict(value)) {
            (true, true) => Settled::ByWords,
            (true, false) => Settled::Recheck,
            (false, _) => Settled::RecheckPython,
        }
    }
}
