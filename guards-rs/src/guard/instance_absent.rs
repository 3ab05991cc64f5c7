//! Guard: the object's own `__dict__` lacks the name `arg`.

use super::fallback::{or_false, or_none};
use super::fast::{PinnedAnswer, Pins};
use super::source::Key;
use super::{Build, Kind};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};

pub struct InstanceAbsent {
    name: Key,
    dict_name: Stored,
}

impl Kind for InstanceAbsent {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(InstanceAbsent { name: Key::build(arg, cx), dict_name: cx.adopt(Owned::interned("__dict__")?) })
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        match value.instance_dict() {
            Some(dict) => self.name.find(dict).map(|found| found.is_none()),
            None => Err(MayRunPython),
        }
    }
    fn ask(&self, value: &Owned) -> bool {
        // A type (its `__dict__` is a proxy), an object without a dict, or a dict with unusual keys.
        match or_none(value.generic_getattr(self.dict_name.get())) {
            Some(dict) if dict.get().is_dict() => self.name.ask(&dict).is_some_and(|found| found.is_none()),
            Some(proxy) => or_false(proxy.contains(self.name.get()).map(|found| !found)),
            None => true,
        }
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        if value.instance_dict().is_some_and(|dict| self.name.is_quiet_in(dict)) && pins.instance(value) {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
