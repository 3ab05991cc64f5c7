//! torch's global and thread-local state: `ir.guards.global_state() == arg`.
//!
//! The state is read natively as a few words.  What they must be is learned, not translated: once Python's tuple was seen
//! equal to `arg`, the words of that moment are the expected ones.  The words say everything that the tuple says as
//! long as no torch-function mode (a default device is such a mode) and no saved-tensor hooks are active; otherwise Python
//! is asked.

use super::fallback::Oracle;
use super::fast::{Pins, Settled};
use super::{Build, Kind};
use crate::ffi::object::clear_foreign_error;
use crate::ffi::state::{StateSymbols, Words};
use crate::ffi::sync::GilCell;
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res};
use crate::handed;
use crate::hook::paused;
use crate::tensor_view::torch;

pub struct GlobalState {
    expected: Obj,
    oracle: Oracle,
    symbols: Option<Box<StateSymbols>>,
    /// Two sets of words: those known to be right, and the last known to be wrong.
    learned: GilCell<Learned>,
}

#[derive(Default)]
struct Learned {
    right: Option<Words>,
    wrong: Option<Words>,
}

impl GlobalState {
    fn is_expected(&self) -> bool {
        paused(|| self.oracle.0.call(&[], None)?.equals(self.expected)).unwrap_or_else(|_| {
            clear_foreign_error();
            false
        })
    }
}

impl Kind for GlobalState {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(GlobalState {
            expected: cx.keep(arg),
            oracle: cx.oracle(&handed::GLOBAL_STATE)?,
            symbols: torch()?.state.map(Box::new),
            learned: GilCell::default(),
        })
    }

    fn holds(&self, _: Obj) -> Quiet<bool> {
        let words = self.symbols.as_ref().ok_or(MayRunPython)?.read();
        if StateSymbols::are_complete(&words) {
            match self.learned.read(|l| (l.right, l.wrong)) {
                (Some(right), _) => return Ok(right == words),
                (None, Some(wrong)) if wrong == words => return Ok(false),
                _ => {}
            }
        }
        Err(MayRunPython)
    }

    fn ask(&self, _: &Owned) -> bool {
        let Some(symbols) = &self.symbols else { return self.is_expected() };
        let words = symbols.read();
        let same = self.is_expected();
        if StateSymbols::are_complete(&words) && symbols.read() == words {
            self.learned.with(|l| if same { l.right = Some(words) } else { l.wrong = Some(words) });
        }
        same
    }

    fn settle(&self, _: Obj, _: &mut Pins) -> Settled {
        Settled::First
    }
}
