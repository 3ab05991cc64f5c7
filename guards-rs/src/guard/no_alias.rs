//! Guard: the values are pairwise distinct objects.

use super::{Build, Relation};
use crate::ffi::sync::GilCell;
use crate::ffi::{Obj, Res};

/// Remembers the addresses that were last found distinct: the same sequence is not sorted again.
pub struct NoAlias(GilCell<Vec<usize>>);

impl Relation for NoAlias {
    fn build(_: Obj, _: &mut Build) -> Res<Self> {
        Ok(NoAlias(GilCell::default()))
    }
    fn holds(&self, values: &[Obj]) -> bool {
        let Some(first) = values.first() else { return true };
        self.0.with(first.py(), |known| {
            let now: smallvec::SmallVec<[usize; 32]> = values.iter().map(|o| o.id()).collect();
            if now.as_slice() == known.as_slice() && !known.is_empty() {
                return true;
            }
            let mut sorted = now.clone();
            sorted.sort_unstable();
            let distinct = sorted.windows(2).all(|w| w[0] != w[1]);
            if distinct {
                *known = now.to_vec();
            }
            distinct
        })
    }

    fn holds_beside(&self, pinned: &[usize], late: &[Obj]) -> bool {
        let beside = late.iter().all(|o| pinned.binary_search(&o.id()).is_err());
        beside && (late.len() < 2 || self.holds(late))
    }
}
