//! Guard on relations of tensor sizes, strides and integers, and on limits of floats:
//! `symbolic.size_checks.SizeChecks`.
//!
//! Sizes can change in place, so every check reads and compares them.  It uses the size programs of plans.

use super::decision::{Decision, SIDES};
use super::{Build, Relation};
use crate::ffi::object::{clear_error, value_error};
use crate::ffi::torch::RawTensor;
use crate::ffi::{Obj, Res, Stored};
use crate::plan::size::{Size, Symbols};
use crate::tensor_view::{torch, Level, Torch};

/// The kind of a number that is read.
enum What {
    Size(usize),
    Stride(usize),
    Int,
    Minus,
}

/// A number of the value at position `value`, which must have exactly this class.
struct Read {
    value: usize,
    class: Stored,
    what: What,
}

/// An assumption about numbers.  Most have one of the first two forms, which are compared without evaluation.
enum Test {
    Least(usize, i64),
    Same(usize, usize),
    Zero(Size),
    NotZero(Size),
    NotNegative(Size),
}

impl Test {
    /// Builds the test that compares an expression to zero.
    fn build(kind: &str, size: Size) -> Res<Test> {
        let linear = size.as_linear();
        let parts = linear.as_ref().map(|(constant, parts)| (*constant, parts.as_slice()));
        match (kind, parts) {
            (">=", Some((constant, [(1, at)]))) if constant != i64::MIN => Ok(Test::Least(*at, -constant)),
            ("==", Some((0, [(1, a), (-1, b)] | [(-1, b), (1, a)]))) => Ok(Test::Same(*a, *b)),
            ("==", _) => Ok(Test::Zero(size)),
            ("!=", _) => Ok(Test::NotZero(size)),
            (">=", _) => Ok(Test::NotNegative(size)),
            _ => Err(value_error(&format!("unknown relation {kind:?}; known: ==, !=, >="))),
        }
    }

    #[inline]
    fn holds(&self, env: &[i64]) -> bool {
        match self {
            Test::Least(at, least) => env[*at] >= *least,
            Test::Same(a, b) => env[*a] == env[*b],
            Test::Zero(size) => size.eval(env).is_ok_and(|value| value == 0),
            Test::NotZero(size) => size.eval(env).is_ok_and(|value| value != 0),
            Test::NotNegative(size) => size.eval(env).is_ok_and(|value| value >= 0),
        }
    }
}

/// The value at `at` must be a float in the interval `low..high`.  Its magnitude is at most `most`, or it is not
/// finite.
struct Limit {
    at: usize,
    most: f64,
    low: f64,
    high: f64,
}

impl Limit {
    fn build(limit: Obj, cx: &mut Build) -> Res<Self> {
        let parts = cx.keep(limit).get().own().to_tuple()?;
        let [most, low, high] = [1, 2, 3].map(|i| parts.get().tuple_item(i));
        if [most, low, high].iter().any(|number| !number.is_float_exact()) {
            return Err(value_error("the limit of a float must be a float"));
        }
        let at = parts.get().tuple_item(0).own().as_i64()? as usize;
        Ok(Limit { at, most: most.as_f64(), low: low.as_f64(), high: high.as_f64() })
    }

    /// NaN is in the interval of all floats, and in the interval from NaN to NaN.
    fn holds(&self, value: Obj) -> bool {
        if !value.is_float_exact() {
            return false;
        }
        let value = value.as_f64();
        let any = self.low == f64::NEG_INFINITY && self.high == f64::INFINITY;
        let inside = any || (self.low <= value && value <= self.high) || (self.low.is_nan() && value.is_nan());
        inside && (value.abs() <= self.most || !value.is_finite())
    }
}

pub struct Sizes {
    reads: Box<[Read]>,
    relations: Box<[Test]>,
    limits: Box<[Limit]>,
    /// Positions of the floats that decisions compute with.  Their bits follow the numbers in the environment.
    floats: Box<[usize]>,
    decisions: Box<[Decision]>,
    torch: Box<Torch>,
}

impl Relation for Sizes {
    const REREADS: bool = true;

    fn build(arg: Obj, cx: &mut Build) -> Res<Self> {
        let checks = cx.keep(arg).get().own();
        let mut symbols = Symbols::default();
        for name in checks.attr(c"names")?.to_tuple()?.get().tuple_items() {
            symbols.add(name.as_str()?.to_owned(), false);
        }
        let reads: Box<[Read]> = checks
            .attr(c"reads")?
            .to_tuple()?
            .get()
            .tuple_items()
            .map(|read| build_read(read, cx))
            .collect::<Res<_>>()?;
        let mut relations = Vec::new();
        for relation in checks.attr(c"relations")?.to_tuple()?.get().tuple_items().map(Obj::own) {
            let kind = relation.attr(c"kind")?;
            let expr = relation.attr(c"expr")?;
            let size = pyo3::Python::attach(|py| {
                symbols.compile(&expr.get().to_bound(py)).map_err(|error| value_error(&error.value(py).to_string()))
            })?;
            relations.push(Test::build(kind.get().as_str()?, size)?);
        }
        let limits = checks
            .attr(c"limits")?
            .to_tuple()?
            .get()
            .tuple_items()
            .map(|limit| Limit::build(limit, cx))
            .collect::<Res<_>>()?;
        let mut floats = Vec::new();
        for float in checks.attr(c"floats")?.to_tuple()?.get().tuple_items().map(Obj::own) {
            let parts = float.to_tuple()?;
            symbols.add(parts.get().tuple_item(0).as_str()?.to_owned(), true);
            floats.push(parts.get().tuple_item(1).own().as_i64()? as usize);
        }
        let into = reads.len() + floats.len();
        let decisions = checks
            .attr(c"decisions")?
            .to_tuple()?
            .get()
            .tuple_items()
            .map(|decision| Decision::build(&decision.own(), &symbols, into))
            .collect::<Res<_>>()?;
        let (relations, floats) = (relations.into(), floats.into());
        Ok(Sizes { reads, relations, limits, floats, decisions, torch: Box::new(torch(checks.get().py())?) })
    }

    fn holds(&self, values: &[Obj]) -> bool {
        let (mut few, mut many) = ([0; 16], Vec::new());
        let words = self.reads.len() + self.floats.len() + SIDES;
        let env = few.get_mut(..words).unwrap_or_else(|| {
            many.resize(words, 0);
            &mut many
        });
        self.fill(env, values).is_some()
            && self.fill_floats(env, values).is_some()
            && self.relations.iter().all(|test| test.holds(env))
            && self.limits.iter().all(|limit| values.get(limit.at).is_some_and(|value| limit.holds(*value)))
            && self.decisions.iter().all(|decision| decision.holds(env))
    }
}

fn build_read(read: Obj, cx: &mut Build) -> Res<Read> {
    let parts = read.own().to_tuple()?;
    let [value, class, what, dim] = [0, 1, 2, 3].map(|i| parts.get().tuple_item(i));
    let dim = dim.own().as_i64()? as usize;
    let what = match what.as_str()? {
        "size" => What::Size(dim),
        "stride" => What::Stride(dim),
        "int" => What::Int,
        "minus" => What::Minus,
        other => return Err(value_error(&format!("unknown read {other:?}; known: size, stride, int, minus"))),
    };
    Ok(Read { value: value.own().as_i64()? as usize, class: cx.keep(class), what })
}

impl Sizes {
    /// Reads the numbers, by the fastest access that the torch probe allows.  None if a number cannot be read.
    fn fill(&self, env: &mut [i64], values: &[Obj]) -> Option<()> {
        match (self.torch.level, self.torch.layout, self.torch.handle, self.torch.abi) {
            (Level::Offsets, Some(layout), ..) => self.fill_by(env, values, |value, dim, strides| {
                let tensor = RawTensor::of(value, layout);
                let (sizes, steps) = if tensor.is_defined() { tensor.sizes_strides() } else { return None };
                (if strides { steps } else { sizes }).get(dim).copied()
            }),
            (Level::CAbi | Level::Offsets, _, Some(offset), Some(abi)) => {
                self.fill_by(env, values, |value, dim, strides| {
                    let handle = value.id() + offset;
                    let words = if strides { abi.strides(handle) } else { abi.sizes(handle) };
                    words?.get(dim).copied()
                })
            }
            _ => self.fill_by(env, values, by_attribute),
        }
    }

    #[inline]
    fn fill_floats(&self, env: &mut [i64], values: &[Obj]) -> Option<()> {
        for (word, at) in env[self.reads.len()..].iter_mut().zip(&self.floats) {
            let value = values.get(*at).filter(|value| value.is_float_exact())?;
            *word = value.as_f64().to_bits() as i64;
        }
        Some(())
    }

    #[inline]
    fn fill_by(
        &self,
        env: &mut [i64],
        values: &[Obj],
        of_tensor: impl Fn(Obj, usize, bool) -> Option<i64>,
    ) -> Option<()> {
        for (number, read) in env.iter_mut().zip(&self.reads) {
            let value = *values.get(read.value)?;
            if value.class() != read.class.get() {
                return None;
            }
            *number = match read.what {
                What::Size(dim) => of_tensor(value, dim, false)?,
                What::Stride(dim) => of_tensor(value, dim, true)?,
                What::Int => value.exact_i64()?,
                What::Minus => value.exact_i64()?.checked_neg()?,
            };
        }
        Some(())
    }
}

/// Used when torch's memory layout is unknown: calls the tensor's own method, which is C code for these classes.
fn by_attribute(value: Obj, dim: usize, strides: bool) -> Option<i64> {
    let read = || {
        let all = value.own().attr(if strides { c"stride" } else { c"size" })?.call(&[], None)?.to_tuple()?;
        if dim < all.get().tuple_len() {
            all.get().tuple_item(dim).own().as_i64().map(Some)
        } else {
            Ok(None)
        }
    };
    read().unwrap_or_else(|_| {
        clear_error();
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimal_sizes_and_equal_sizes_are_compared_without_a_program() {
        let least = Test::Least(0, 4);
        assert!(least.holds(&[4]) && !least.holds(&[3]));
        let same = Test::Same(0, 2);
        assert!(same.holds(&[7, 0, 7]) && !same.holds(&[7, 7, 0]));
    }

    #[test]
    fn relations_compare_to_zero() {
        let size = || Size::Symbol(0);
        assert!(Test::Zero(size()).holds(&[0]) && !Test::Zero(size()).holds(&[1]));
        assert!(Test::NotZero(size()).holds(&[-1]) && !Test::NotZero(size()).holds(&[0]));
        assert!(Test::NotNegative(size()).holds(&[0]) && !Test::NotNegative(size()).holds(&[-1]));
    }

    #[test]
    fn a_kind_finds_its_cheapest_test() {
        assert!(matches!(Test::build(">=", Size::Symbol(3)), Ok(Test::Least(3, 0))));
        assert!(matches!(Test::build("==", Size::Symbol(3)), Ok(Test::Zero(_))));
        assert!(matches!(Test::build("!=", Size::Const(3)), Ok(Test::NotZero(_))));
    }
}
