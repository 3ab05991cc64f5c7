//! Guard `arg not in value`, in the storage of a dict or of a subclass.

use super::fast::{PinnedAnswer, Pins};
use super::source::Key;
use super::{Build, Kind};
use crate::ffi::{Obj, Owned, Quiet, Res};

pub struct DictAbsent(Key);

impl Kind for DictAbsent {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(DictAbsent(Key::build(arg, cx)))
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(value.is_dict() && self.0.find(value)?.is_none())
    }
    fn ask(&self, value: &Owned) -> bool {
        self.0.ask(value).is_some_and(|found| found.is_none())
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        if self.0.is_quiet_in(value) && pins.dict(value) {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
