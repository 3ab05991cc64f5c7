//! torch's global and thread-local state: `ir.guards.global_state() == arg`.
//!
//! The state is read natively as three words.  What they must be is learned, not translated: once Python's tuple was seen
//! equal to `arg`, the words of that moment are the expected ones.  The words say everything that the tuple says as
//! long as no torch-function mode is active (a default device is such a mode); otherwise Python is asked.

use super::fallback::{or_false, Oracle};
use super::fast::{Pins, Settled};
use super::{Build, Kind};
use crate::ffi::sync::GilCell;
use crate::ffi::torch::StateSymbols;
use crate::ffi::{MayRunPython, Obj, Owned, Quiet, Res};
use crate::tensor_view::torch;

pub struct GlobalState {
    expected: Obj,
    oracle: Oracle,
    symbols: Option<StateSymbols>,
    /// Two sets of words: those known to be right, and the last known to be wrong.
    learned: GilCell<Learned>,
}

#[derive(Default)]
struct Learned {
    right: Option<[u64; 3]>,
    wrong: Option<[u64; 3]>,
}

/// Whether the words say everything: no torch-function mode.
fn complete(words: &[u64; 3]) -> bool {
    words[2] >> 32 == 0
}

impl GlobalState {
    fn is_expected(&self) -> bool {
        or_false(self.oracle.0.call(&[], None).and_then(|now| now.equals(self.expected)))
    }
}

impl Kind for GlobalState {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(GlobalState {
            expected: cx.keep(arg),
            oracle: cx.oracle(c"global_state")?,
            symbols: torch()?.state,
            learned: GilCell::default(),
        })
    }

    fn holds(&self, _: Obj) -> Quiet<bool> {
        let words = self.symbols.ok_or(MayRunPython)?.read();
        if complete(&words) {
            match self.learned.read(|l| (l.right, l.wrong)) {
                (Some(right), _) => return Ok(right == words),
                (None, Some(wrong)) if wrong == words => return Ok(false),
                _ => {}
            }
        }
        Err(MayRunPython)
    }

    fn ask(&self, _: &Owned) -> bool {
        let Some(symbols) = self.symbols else { return self.is_expected() };
        let words = symbols.read();
        let same = self.is_expected();
        if complete(&words) && symbols.read() == words {
            self.learned.with(|l| if same { l.right = Some(words) } else { l.wrong = Some(words) });
        }
        same
    }

    fn settle(&self, _: Obj, _: &mut Pins) -> Settled {
        Settled::First
    }
}
