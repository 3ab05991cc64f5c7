//! Guard on torch's global and thread-local state: `ir.guards.global_state() == arg`.
//!
//! The state is read natively as a few words.  The expected words are learned, not translated from `arg`: when Python's
//! tuple was found equal to `arg`, the words of that moment become the expected ones.  The words cover all of the tuple
//! unless a torch-function mode (a default device is such a mode) or saved-tensor hooks are active.  In that case
//! Python decides.

use super::fallback::Oracle;
use super::fast::{PinnedAnswer, Pins};
use super::{Build, Kind};
use crate::ffi::object::clear_foreign_error;
use crate::ffi::state::{StateSymbols, Words};
use crate::ffi::sync::GilCell;
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res, Stored};
use crate::hook_state::paused;
use crate::registered_object;
use crate::tensor_view::torch;

pub struct GlobalState {
    expected: Stored,
    oracle: Oracle,
    symbols: Option<Box<StateSymbols>>,
    /// Two sets of words: the known right ones, and the last known wrong ones.
    learned: GilCell<RecordedState>,
}

#[derive(Default)]
struct RecordedState {
    right: Option<Words>,
    wrong: Option<Words>,
}

impl GlobalState {
    fn is_expected(&self) -> bool {
        paused(|| self.oracle.0.call(&[], None)?.equals(self.expected.get())).unwrap_or_else(|_| {
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
            oracle: cx.oracle(arg.py(), &registered_object::GLOBAL_STATE)?,
            symbols: torch(arg.py())?.state.map(Box::new),
            learned: GilCell::default(),
        })
    }

    fn holds(&self, value: Obj) -> Quiet<bool> {
        let words = self.symbols.as_ref().ok_or(MayRunPython)?.read();
        if StateSymbols::are_complete(&words) {
            match self.learned.read(value.py(), |l| (l.right, l.wrong)) {
                (Some(right), _) => return Ok(right == words),
                (None, Some(wrong)) if wrong == words => return Ok(false),
                _ => {}
            }
        }
        Err(MayRunPython)
    }

    fn ask(&self, value: &Owned) -> bool {
        let Some(symbols) = &self.symbols else { return self.is_expected() };
        let words = symbols.read();
        let same = self.is_expected();
        if StateSymbols::are_complete(&words) && symbols.read() == words {
            self.learned.with(value.get().py(), |l| if same { l.right = Some(words) } else { l.wrong = Some(words) });
        }
        same
    }

    fn settle(&self, _: Obj, _: &mut Pins) -> PinnedAnswer {
        PinnedAnswer::First
    }
}
