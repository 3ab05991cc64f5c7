//! torch's global and thread-local state: `ir.guards.global_state() == arg`.
//!
//! The state is read natively as three words.  What they must be is learned, not translated: once Python's tuple was seen
//! equal to `arg`, the words of that moment are the expected ones.  The words say everything that the tuple says as
//! long as no torch-function mode is active (a default device is such a mode); otherwise Python is asked.

use super::fallback::{or_false, oracle};
use super::fast::{Pins, Settled};
use super::{Build, Kind, Walk};
use crate::ffi::sync::GilCell;
use crate::ffi::torch::StateSymbols;
use crate::ffi::{Obj, Res};
use crate::tensor_view::torch;

pub struct GlobalState {
    expected: Obj,
    oracle: Obj,
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
    fn ask(&self) -> bool {
        or_false(self.oracle.call(&[], None).and_then(|now| now.equals(self.expected)))
    }
}

impl Kind for GlobalState {
    const COST: u8 = 2;
    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Ok(GlobalState {
            expected: cx.keep(arg),
            oracle: cx.adopt(oracle(c"global_state")?),
            symbols: torch()?.state,
            learned: GilCell::default(),
        })
    }

    fn holds(&self, _: Obj, walk: &mut Walk) -> bool {
        let Some(symbols) = self.symbols else {
            walk.hold();
            return self.ask();
        };
        let words = symbols.read();
        if complete(&words) {
            match self.learned.read(|l| (l.right, l.wrong)) {
                (Some(right), _) => return right == words,
                (None, Some(wrong)) if wrong == words => return false,
                _ => {}
            }
        }
        walk.hold();
        let same = self.ask();
        if complete(&words) && symbols.read() == words {
            self.learned.with(|l| if same { l.right = Some(words) } else { l.wrong = Some(words) });
        }
        same
    }

    fn settle(&self, _: Obj, _: &mut Pins) -> Settled {
        Settled::First
    }
}
