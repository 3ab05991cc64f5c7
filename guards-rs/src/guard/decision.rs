//! A comparison of computed floats with its expected answer: `symbolic.data_checks.Decision`.

use crate::ffi::object::value_error;
use crate::ffi::{Owned, Res};
use crate::plan::real::Real;
use crate::plan::size::Symbols;
use pyo3::prelude::*;

#[derive(Clone, Copy)]
enum Op {
    Less,
    LessOrEqual,
    Equal,
}

/// Expects that `left op right` gives `holds`.  `swapped` exchanges the sides.  The values of the sides are written to
/// `env[into]` and `env[into + 1]`.
pub struct Decision {
    left: Real,
    right: Real,
    op: Op,
    swapped: bool,
    holds: bool,
    into: usize,
}

/// Number of words that a decision writes to the environment.
pub const SIDES: usize = 2;

impl Decision {
    pub fn build(test: &Owned, symbols: &Symbols, into: usize) -> Res<Decision> {
        let (left, right, kind) = (test.attr(c"left")?, test.attr(c"right")?, test.attr(c"op")?);
        let (op, swapped, negated) = match kind.get().as_str()? {
            "lt" => (Op::Less, false, false),
            "gt" => (Op::Less, true, false),
            "le" => (Op::LessOrEqual, false, false),
            "ge" => (Op::LessOrEqual, true, false),
            "eq" => (Op::Equal, false, false),
            "ne" => (Op::Equal, false, true),
            other => return Err(value_error(&format!("unknown comparison {other:?}; known: lt, gt, le, ge, eq, ne"))),
        };
        let compile = |into: usize, side: &Owned| {
            Python::attach(|py| {
                Real::compile(symbols, into, &side.get().to_bound(py))
                    .map_err(|error| value_error(&error.value(py).to_string()))
            })
        };
        let holds = test.attr(c"holds")?.is_true()? != negated;
        Ok(Decision { left: compile(into, &left)?, right: compile(into + 1, &right)?, op, swapped, holds, into })
    }

    /// False if a side cannot be computed.
    pub fn holds(&self, env: &mut [i64]) -> bool {
        if !(self.left.update(env) && self.right.update(env)) {
            return false;
        }
        let [left, right] = [env[self.into], env[self.into + 1]].map(|word| f64::from_bits(word as u64));
        let (a, b) = if self.swapped { (right, left) } else { (left, right) };
        let found = match self.op {
            Op::Less => a < b,
            Op::LessOrEqual => a <= b,
            Op::Equal => a == b,
        };
        found == self.holds
    }
}
