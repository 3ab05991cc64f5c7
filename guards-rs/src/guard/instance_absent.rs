//! The object's own `__dict__` lacks the name `arg`.

use super::fallback::{or_false, or_none};
use super::fast::{Pins, Settled};
use super::source::dict_lookup;
use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Owned, Res};

pub struct InstanceAbsent {
    name: Obj,
    dict_name: Obj,
}

impl Kind for InstanceAbsent {
    const COST: u8 = 1;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(InstanceAbsent { name: cx.keep(arg), dict_name: cx.adopt(Owned::interned("__dict__")?) })
    }
    #[inline]
    fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
        if let Some(dict) = value.instance_dict() {
            return dict_lookup(dict, self.name, walk) == Some(None);
        }
        // A type (its __dict__ is a proxy) or an object without a dict.
        walk.hold();
        match or_none(value.generic_getattr(self.dict_name)) {
            Some(proxy) => or_false(proxy.contains(self.name).map(|found| !found)),
            None => true,
        }
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        if self.name.is_plain_key() && pins.instance(value) {
            Settled::ByWords
        } else {
            Settled::RecheckPython
        }
    }
}
