//! Guard `arg in value`, in the storage of a dict or of a subclass.

use super::fast::{PinnedAnswer, Pins};
use super::source::Key;
use super::{Build, Kind};
use crate::ffi::{Obj, Owned, Quiet, Res};

pub struct DictContains(Key);

impl Kind for DictContains {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(DictContains(Key::build(arg, cx)))
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(value.is_dict() && self.0.find(value)?.is_some())
    }
    fn ask(&self, value: &Owned) -> bool {
        self.0.ask(value).is_some_and(|found| found.is_some())
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        if self.0.is_quiet_in(value) && pins.dict(value) {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
