//! Guard on numbers inside host tensors, which decided a branch of the program: `symbolic.data_checks.DataChecks`.
//!
//! A number can be written at any time, so every check reads and compares it.  Consecutive equal numbers are tested
//! once: the steps of an optimizer are mostly equal.

use super::decision::{Decision, SIDES};
use super::{Build, Relation};
use crate::ffi::aten::{Handle, Object, UnwrappedTensor};
use crate::ffi::object::value_error;
use crate::ffi::{Obj, Res, Stored};
use crate::plan::size::Symbols;
use crate::tensor_view::{dtype_code, ready};
use pyo3::prelude::*;
use smallvec::SmallVec;

/// A tensor of one number.  It must have this class and dtype.  `wide`: the number has 8 bytes, not 4.
struct Read {
    class: Stored,
    dtype: i32,
    wide: bool,
}

/// A decision about the numbers at positions `at`.
struct Test {
    decision: Decision,
    at: Box<[usize]>,
}

impl Test {
    fn build(test: Obj) -> Res<Test> {
        let test = test.own();
        let mut symbols = Symbols::default();
        symbols.add("x".to_owned(), true);
        let at = test.attr(c"at")?.to_tuple()?;
        let at = at.get().tuple_items().map(|i| Ok(i.own().as_i64()? as usize)).collect::<Res<_>>()?;
        Ok(Test { decision: Decision::build(&test, &symbols, 1)?, at })
    }

    fn holds_of(&self, number: f64) -> bool {
        let mut env = [0i64; 1 + SIDES];
        env[0] = number.to_bits() as i64;
        self.decision.holds(&mut env)
    }

    fn holds(&self, numbers: &[f64]) -> bool {
        let mut last = None;
        self.at.iter().all(|i| {
            let Some(number) = numbers.get(*i).copied() else { return false };
            let known = last.replace(number.to_bits()) == Some(number.to_bits());
            known || self.holds_of(number)
        })
    }
}

/// The first values are tensors whose number is read.  The remaining values are written, and must lie in other memory.
pub struct Data {
    reads: Box<[Read]>,
    tests: Box<[Test]>,
}

impl Relation for Data {
    const REREADS: bool = true;

    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        Python::attach(ready).map_err(|error| value_error(&error.to_string()))?;
        let checks = cx.keep(arg).get().own();
        let mut reads = Vec::new();
        for read in checks.attr(c"reads")?.to_tuple()?.get().tuple_items().map(Obj::own) {
            let parts = read.to_tuple()?;
            let (class, dtype) = (parts.get().tuple_item(0), parts.get().tuple_item(1));
            let code = dtype_code(dtype)?.unwrap_or(-1); // a dtype without a code is never read
            let wide = match parts.get().tuple_item(2).own().as_i64()? {
                4 => false,
                8 => true,
                n => return Err(value_error(&format!("a number of {n} bytes; known: 4, 8"))),
            };
            reads.push(Read { class: cx.keep(class), dtype: code, wide });
        }
        let tests = checks.attr(c"decisions")?.to_tuple()?.get().tuple_items().map(Test::build).collect::<Res<_>>()?;
        Ok(Data { reads: reads.into(), tests })
    }

    fn holds(&self, values: &[Obj]) -> bool {
        if values.len() < self.reads.len() {
            return false;
        }
        let (read, written) = values.split_at(self.reads.len());
        Python::attach(|py| self.look(py, read, written)).unwrap_or(false)
    }
}

impl Data {
    /// None if a number cannot be read, or if its memory overlaps another tensor.
    fn look(&self, py: Python<'_>, read: &[Obj], written: &[Obj]) -> Option<bool> {
        let mut numbers = SmallVec::<[f64; 32]>::new();
        let mut places = SmallVec::<[(usize, usize); 32]>::new();
        for (value, want) in read.iter().zip(&self.reads) {
            if value.class() != want.class.get() {
                return None;
            }
            let (number, place) = with_handle(py, *value, |handle| handle.number(want.dtype, want.wide))?;
            numbers.push(number);
            places.push(place);
        }
        places.sort_unstable();
        if places.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return None;
        }
        for value in written {
            let (start, end) = with_handle(py, *value, |handle| handle.storage_span().ok())?;
            let behind = places.partition_point(|&(_, to)| to <= start);
            if places.get(behind).is_some_and(|&(from, _)| from < end) {
                return None;
            }
        }
        Some(self.tests.iter().all(|test| test.holds(&numbers)))
    }
}

/// Calls `ask` with the handle of a tensor.  None if `value` is no tensor.
fn with_handle<T>(py: Python<'_>, value: Obj, ask: impl FnOnce(Handle) -> Option<T>) -> Option<T> {
    let bound = value.to_bound(py);
    match Object::from_bound(&bound).tensor(py).ok()? {
        UnwrappedTensor::Borrowed(handle) => ask(handle),
        UnwrappedTensor::Owned(tensor) => ask(tensor.handle()),
    }
}
