//! The cell has no contents.

use super::{Build, Kind, Walk};
use crate::ffi::{Obj, Res};

pub struct CellEmpty;

impl Kind for CellEmpty {
    const COST: u8 = 0;
    fn build(_: Obj, _: &mut Build) -> Res<Self> {
        Ok(CellEmpty)
    }
    #[inline]
    fn holds(&self, value: Obj, _: &mut Walk) -> bool {
        value.is_cell() && value.cell_get().is_none()
    }
    fn is_pure(&self) -> bool {
        true
    }
}
