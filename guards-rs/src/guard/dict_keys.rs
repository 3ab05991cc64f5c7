//! `list(value)` is the tuple `arg`, by identity or as constants.

use super::equals::same_native;
use super::fallback::{ask, or_none, oracle};
use super::fast::{Pins, Settled};
use super::length::builtin_length;
use super::{Build, Kind, Walk};
use crate::ffi::object::Owned;
use crate::ffi::{Obj, Res};

pub struct DictKeys {
    keys: Obj,
    len: usize,
    same_constant: Obj,
}

impl DictKeys {
    fn same(&self, seen: Obj, want: Obj, walk: &mut Walk) -> bool {
        if seen == want {
            return true;
        }
        if seen.class() != want.class() {
            return false;
        }
        if want.is_plain_constant() {
            return same_native(seen, want);
        }
        ask(self.same_constant, seen, want, walk)
    }
}

impl Kind for DictKeys {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let keys = cx.adopt(arg.to_tuple()?);
        Ok(DictKeys { keys, len: keys.tuple_len(), same_constant: cx.adopt(oracle(c"same_constant")?) })
    }

    fn holds(&self, value: Obj, walk: &mut Walk) -> bool {
        if builtin_length(value).is_some_and(|n| n != self.len) {
            return false;
        }
        if value.is_dict_exact() {
            let mut pos = 0;
            let matched = self.keys.tuple_items().all(|want| match value.dict_next(&mut pos) {
                Some((seen, _)) => self.same(seen, want, walk),
                None => false,
            });
            return matched && value.dict_next(&mut pos).is_none();
        }
        if self.len == 0 && value.is_ordered_dict_exact() {
            return true; // its length was compared above
        }
        // Other mappings (an OrderedDict keeps its own order) are listed by their own iterator.
        walk.hold();
        let listed: Option<Owned> = or_none(value.to_tuple());
        let Some(listed) = listed else { return false };
        listed.tuple_len() == self.len
            && listed.tuple_items().zip(self.keys.tuple_items()).all(|(a, b)| self.same(a, b, walk))
    }
    fn is_pure_on(&self, class: Obj) -> bool {
        // Keys of other classes are told apart by their class.
        class.is_dict_type() && self.keys.tuple_items().all(|key| key.is_plain_constant())
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> Settled {
        let own_order = value.is_dict_exact() || (value.is_ordered_dict_exact() && self.len == 0);
        let plain = self.keys.tuple_items().all(|key| key.is_plain_constant());
        if own_order && plain && pins.dict(value) {
            Settled::ByWords
        } else {
            Settled::RecheckPython
        }
    }
}
