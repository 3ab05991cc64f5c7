//! Guard: `list(value)` equals the tuple `arg`, by identity or as constants.

use super::equals::same_native;
use super::fallback::{or_none, Oracle};
use super::fast::{PinnedAnswer, Pins};
use super::length::builtin_length;
use super::{Build, Kind};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};
use crate::registered_object;

pub struct DictKeys {
    keys: Stored,
    len: usize,
    same_constant: Oracle,
    keys_of: Oracle,
}

fn same_quiet(seen: Obj, want: Obj) -> Quiet<bool> {
    match () {
        () if seen == want => Ok(true),
        () if seen.class() != want.class() => Ok(false),
        () if want.is_plain_constant() => Ok(same_native(seen, want)),
        () => Err(MayRunPython),
    }
}

impl DictKeys {
    fn same(&self, seen: Obj, want: Obj) -> bool {
        same_quiet(seen, want).unwrap_or_else(|_| self.same_constant.agrees(seen, want))
    }
}

impl Kind for DictKeys {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let keys = cx.adopt(arg.own().to_tuple()?);
        let (same_constant, keys_of) = (
            cx.oracle(arg.py(), &registered_object::SAME_CONSTANT)?,
            cx.oracle(arg.py(), &registered_object::KEYS_OF)?,
        );
        Ok(DictKeys { keys, len: keys.get().tuple_len(), same_constant, keys_of })
    }

    fn holds(&self, value: Obj) -> Quiet<bool> {
        if builtin_length(value).is_some_and(|n| n != self.len) {
            return Ok(false);
        }
        if self.len == 0 && value.is_ordered_dict_exact() {
            return Ok(true); // the length was compared above
        }
        if !value.is_dict_exact() {
            return Err(MayRunPython);
        }
        let mut pos = 0;
        for want in self.keys.get().tuple_items() {
            let Some((seen, _)) = value.dict_next(&mut pos) else { return Ok(false) };
            if !same_quiet(seen, want)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn ask(&self, value: &Owned) -> bool {
        // C iterators list exact classes: an OrderedDict has its own order, and a program's class may return anything.
        let plain = value.get().is_dict_exact() || value.get().is_ordered_dict_exact();
        let listed = if plain { value.to_tuple() } else { self.keys_of.0.call(&[value.get()], None) };
        let Some(listed) = or_none(listed) else { return false };
        listed.get().tuple_len() == self.len
            && listed.get().tuple_items().zip(self.keys.get().tuple_items()).all(|(a, b)| self.same(a, b))
    }

    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        let own_order = value.is_dict_exact() || (value.is_ordered_dict_exact() && self.len == 0);
        let plain = self.keys.get().tuple_items().all(|key| key.is_plain_constant());
        if own_order && plain && pins.dict(value) {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
