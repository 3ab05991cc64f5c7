//! Guard: the cell has no contents.

use super::{Build, Kind};
use crate::ffi::{Obj, Quiet, Res};

pub struct CellEmpty;

impl Kind for CellEmpty {
    const COST: u8 = 0;
    fn build(_: Obj, _: &mut Build) -> Res<Self> {
        Ok(CellEmpty)
    }
    #[inline]
    fn holds(&self, value: Obj) -> Quiet<bool> {
        Ok(value.is_cell() && value.cell_get().is_none())
    }
}
