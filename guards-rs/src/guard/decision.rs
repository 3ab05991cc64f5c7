//! A comparison of floats that a program computes, and its answer: `ir.data_checks.Decision`.

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

/// `left op right` is `holds` (and the other way round for NaN where it says so).  Both sides are put at `into` and behind it.
pub struct Decision {
    left: Real,
    right: Real,
    op: Op,
    swapped: bool,
    holds: bool,
    into: usize,
}

/// Words of the environment that a decision writes.
pub const SIDES: usize = 2;

impl Decision {
    pub fn build(test: &Owned, symbols: &Symbols, into: usize) -> Res<Decision> {
        let (left, right, kind) = (test.attr(c"left")?, test.attr(c"right")?, test.attr(c"op")?);
        let (op, swapped, negated) = match kind.as_str()? {
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

    /// False where it cannot be told.
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
