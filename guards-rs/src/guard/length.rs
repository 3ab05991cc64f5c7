//! Guard `len(value) == arg`.

use super::fallback::or_none;
use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res};

pub struct Length(usize);

/// Length of a builtin container, without running Python code.
#[inline]
pub fn builtin_length(value: Obj) -> Option<usize> {
    if value.is_dict_exact() || value.is_ordered_dict_exact() {
        Some(value.dict_len())
    } else if value.is_list_exact() {
        Some(value.list_len())
    } else if value.is_tuple_exact() {
        Some(value.tuple_len())
    } else {
        None
    }
}

impl Kind for Length {
    const COST: u8 = 0;
    fn build(arg: Obj, _: &mut Build) -> Res<Self> {
        Ok(Length(arg.own().as_i64()? as usize))
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(match builtin_length(value) {
            Some(n) => n == self.0,
            // For a subclass, compare the storage and ignore its `__len__`.
            None if value.is_list() => value.list_len() == self.0,
            None if value.is_tuple() => value.tuple_len() == self.0,
            None if value.is_dict() => value.dict_len() == self.0,
            None => return Err(MayRunPython),
        })
    }
    fn ask(&self, value: &Owned) -> bool {
        or_none(value.len()) == Some(self.0)
    }
    fn settle(&self, value: Obj, pins: &mut Pins) -> PinnedAnswer {
        if value.is_dict_exact() || value.is_ordered_dict_exact() {
            return if pins.dict(value) { PinnedAnswer::ByWords } else { PinnedAnswer::Recheck };
        }
        if value.is_list_exact() {
            pins.list_length(value);
            return PinnedAnswer::ByWords;
        }
        if value.is_tuple_exact() {
            PinnedAnswer::ByWords
        } else {
            PinnedAnswer::Recheck
        }
    }
}
