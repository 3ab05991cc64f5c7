//! Sizes in a plan: integers, or small programs over the sizes of the inputs.
//!
//! In: `int | symbolic.expr.Expr`.  Out: `Size`, evaluated natively.  `Dims` is a shape or a list of strides; a static
//! one costs nothing.  The environment is an array of words: integers, and the bits of floats (`real.rs`).

use std::collections::HashMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::ffi::aten::{Failure, Outcome};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token {
    Push(i64),
    Symbol(usize),
    Add,
    Mul,
    FloorDiv,
    Mod,
    Min,
    Max,
}

/// `factor` times the product of symbols.
#[derive(Debug, Clone, PartialEq)]
pub struct Term {
    factor: i64,
    symbols: SmallVec<[usize; 4]>,
}

impl Term {
    #[inline]
    fn eval(&self, env: &[i64]) -> Option<i64> {
        self.symbols.iter().try_fold(self.factor, |product, i| product.checked_mul(env[*i]))
    }
}

/// An integer, a symbol, a sum of products of symbols, or else a program in reverse Polish order.
#[derive(Debug, Clone, PartialEq)]
pub enum Size {
    Const(i64),
    Symbol(usize),
    Sum(Box<[Term]>),
    Expr(Box<[Token]>),
}

/// A linear expression: the constant, then pairs (factor, symbol).
pub type Linear = (i64, SmallVec<[(i64, usize); 2]>);

/// The integers of one call; mostly few.
pub type Numbers = SmallVec<[i64; 12]>;

const DEPTH: usize = 32;

impl Size {
    #[inline]
    pub fn eval(&self, env: &[i64]) -> Outcome<i64> {
        match self {
            Size::Const(value) => Ok(*value),
            Size::Symbol(i) => Ok(env[*i]),
            Size::Sum(terms) => {
                let sum = terms.iter().try_fold(0i64, |sum, term| sum.checked_add(term.eval(env)?));
                sum.ok_or_else(|| overflow(terms, env))
            }
            Size::Expr(tokens) => Size::run(tokens, env),
        }
    }

    fn run(tokens: &[Token], env: &[i64]) -> Outcome<i64> {
        let mut stack = [0i64; DEPTH];
        let mut top = 0usize;
        for token in tokens {
            let value = match *token {
                Token::Push(value) => value,
                Token::Symbol(i) => env[i],
                operator => {
                    top -= 2;
                    apply(operator, stack[top], stack[top + 1])?
                }
            };
            stack[top] = value;
            top += 1;
        }
        Ok(stack[0])
    }

    pub fn as_linear(&self) -> Option<Linear> {
        let (mut constant, mut parts) = (0i64, SmallVec::new());
        match self {
            Size::Const(value) => constant = *value,
            Size::Symbol(i) => parts.push((1, *i)),
            Size::Sum(terms) => {
                for term in terms {
                    match term.symbols.as_slice() {
                        [] => constant = constant.checked_add(term.factor)?,
                        [i] => parts.push((term.factor, *i)),
                        _ => return None,
                    }
                }
            }
            Size::Expr(_) => return None,
        }
        Some((constant, parts))
    }

    pub fn as_const(&self) -> Option<i64> {
        match self {
            Size::Const(value) => Some(*value),
            _ => None,
        }
    }
}

#[cold]
fn overflow(terms: &[Term], env: &[i64]) -> Failure {
    Failure(format!("a size overflows 64 bits: the terms {terms:?} of {env:?}"))
}

fn apply(operator: Token, a: i64, b: i64) -> Outcome<i64> {
    let overflow = || Failure(format!("a size overflows 64 bits: {operator:?} of {a} and {b}"));
    match operator {
        Token::Add => a.checked_add(b).ok_or_else(overflow),
        Token::Mul => a.checked_mul(b).ok_or_else(overflow),
        Token::Min => Ok(a.min(b)),
        Token::Max => Ok(a.max(b)),
        Token::FloorDiv | Token::Mod if b == 0 => Err(Failure("a size divides by zero".into())),
        Token::FloorDiv => {
            let q = a.checked_div(b).ok_or_else(overflow)?;
            Ok(if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q })
        }
        Token::Mod => {
            let r = a.checked_rem(b).ok_or_else(overflow)?;
            Ok(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
        }
        Token::Push(_) | Token::Symbol(_) => unreachable!("leaves are handled by eval"),
    }
}

/// `ir.loops.NUMBER`: the input is an integer.
pub const NUMBER: i64 = -1;
/// `ir.loops.FLOAT`: the input is a float.
pub const FLOAT: i64 = -2;

/// The symbols of a plan: name -> position in the environment.
#[derive(Default)]
pub struct Symbols {
    pub index: HashMap<String, usize>,
    /// For each of the first positions: the input slot and the dimension that give its value.  With `NUMBER` or `FLOAT`
    /// as the dimension, the input itself is the value.
    pub origins: Vec<(usize, i64)>,
    /// Whether the word at each position holds the bits of a float.
    pub floats: Vec<bool>,
}

impl Symbols {
    pub fn add(&mut self, name: String, is_float: bool) {
        self.index.insert(name, self.floats.len());
        self.floats.push(is_float);
    }

    /// The name of each word of the environment, and whether the word is a float.
    pub fn words(&self) -> Vec<(String, bool)> {
        let mut words = vec![(String::new(), false); self.floats.len()];
        for (name, &at) in &self.index {
            words[at] = (name.clone(), self.floats[at]);
        }
        words
    }

    /// Compiles an `int`, a constant `Expr`, or an `Expr` over known symbols.
    pub fn compile(&self, value: &Bound<'_, PyAny>) -> PyResult<Size> {
        if let Ok(number) = value.extract::<i64>() {
            return Ok(Size::Const(number)); // ints, and constant expressions through `__index__`
        }
        if let Some(terms) = self.terms(value)? {
            return Ok(match &*terms {
                [Term { factor: 1, symbols }] if symbols.len() == 1 => Size::Symbol(symbols[0]),
                _ => Size::Sum(terms.into()),
            });
        }
        let mut tokens = Vec::new();
        self.emit(value, &mut tokens)?;
        if stack_depth(&tokens) > DEPTH {
            return Err(PyValueError::new_err(format!("the size {value} nests deeper than {DEPTH} levels")));
        }
        Ok(Size::Expr(tokens.into()))
    }

    /// The terms of a sum of products of symbols.  None for other expressions.
    fn terms(&self, expr: &Bound<'_, PyAny>) -> PyResult<Option<Vec<Term>>> {
        let mut found = Vec::new();
        for term in expr.getattr("terms")?.try_iter()? {
            let (atoms, factor) = term?.extract::<(Bound<'_, PyAny>, i64)>()?;
            let mut symbols = SmallVec::new();
            for atom in atoms.try_iter()? {
                let atom = atom?;
                if atom.getattr("kind")?.extract::<String>()? != "sym" {
                    return Ok(None);
                }
                symbols.push(self.position_of(&atom)?);
            }
            found.push(Term { factor, symbols });
        }
        Ok(Some(found))
    }

    /// The position of a symbol in the environment.
    fn position_of(&self, atom: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.position(&atom.getattr("key")?.extract::<String>()?)
    }

    pub fn position(&self, name: &str) -> PyResult<usize> {
        let unknown = || PyValueError::new_err(format!("the size symbol {name} is not in Plan.symbols, nor computed"));
        self.index.get(name).copied().ok_or_else(unknown)
    }

    pub fn compile_all(&self, values: &Bound<'_, PyAny>) -> PyResult<Vec<Size>> {
        values.try_iter()?.map(|value| self.compile(&value?)).collect()
    }

    pub fn dims(&self, values: &Bound<'_, PyAny>) -> PyResult<Dims> {
        Ok(Dims::new(self.compile_all(values)?))
    }

    /// `terms` of an Expr are ((atoms, coefficient), ...).  An atom has `kind`, `args`, and `key` (the name of a
    /// symbol).
    fn emit(&self, expr: &Bound<'_, PyAny>, out: &mut Vec<Token>) -> PyResult<()> {
        if let Ok(number) = expr.extract::<i64>() {
            out.push(Token::Push(number));
            return Ok(());
        }
        out.push(Token::Push(0));
        for term in expr.getattr("terms")?.try_iter()? {
            let (atoms, coefficient) = term?.extract::<(Bound<'_, PyAny>, i64)>()?;
            out.push(Token::Push(coefficient));
            for atom in atoms.try_iter()? {
                self.emit_atom(&atom?, out)?;
                out.push(Token::Mul);
            }
            out.push(Token::Add);
        }
        Ok(())
    }

    fn emit_atom(&self, atom: &Bound<'_, PyAny>, out: &mut Vec<Token>) -> PyResult<()> {
        let kind = atom.getattr("kind")?.extract::<String>()?;
        if kind == "sym" {
            out.push(Token::Symbol(self.position_of(atom)?));
            return Ok(());
        }
        let operator = match kind.as_str() {
            "//" => Token::FloorDiv,
            "%" => Token::Mod,
            "min" => Token::Min,
            "max" => Token::Max,
            _ => return Err(PyValueError::new_err(format!("unknown atom {kind:?} in a size"))),
        };
        for argument in atom.getattr("args")?.try_iter()? {
            self.emit(&argument?, out)?;
        }
        out.push(operator);
        Ok(())
    }
}

fn stack_depth(tokens: &[Token]) -> usize {
    let (mut now, mut most) = (0usize, 0usize);
    for token in tokens {
        match token {
            Token::Push(_) | Token::Symbol(_) => now += 1,
            _ => now -= 1,
        }
        most = most.max(now);
    }
    most
}

/// Sizes or strides.
#[derive(Debug, Clone, PartialEq)]
pub enum Dims {
    Static(Box<[i64]>),
    Dynamic(Box<[Size]>),
}

impl Dims {
    pub fn new(sizes: Vec<Size>) -> Dims {
        match sizes.iter().map(Size::as_const).collect::<Option<Vec<i64>>>() {
            Some(values) => Dims::Static(values.into()),
            None => Dims::Dynamic(sizes.into()),
        }
    }

    pub fn as_static(&self) -> Option<&[i64]> {
        match self {
            Dims::Static(values) => Some(values),
            Dims::Dynamic(_) => None,
        }
    }

    /// The values.  Computed values are stored in `room`.
    #[inline]
    pub fn resolve<'a>(&'a self, env: &[i64], room: &'a mut Numbers) -> Outcome<&'a [i64]> {
        match self {
            Dims::Static(values) => Ok(values),
            Dims::Dynamic(sizes) => {
                room.clear();
                for size in sizes {
                    room.push(size.eval(env)?);
                }
                Ok(room)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: i64 = i64::MAX;

    fn sum(terms: &[(i64, &[usize])]) -> Size {
        let term =
            |(factor, symbols): &(i64, &[usize])| Term { factor: *factor, symbols: SmallVec::from_slice(symbols) };
        Size::Sum(terms.iter().map(term).collect())
    }

    fn binary(operator: Token, a: i64, b: i64) -> Outcome<i64> {
        Size::Expr([Token::Symbol(0), Token::Symbol(1), operator].into()).eval(&[a, b])
    }

    /// Python's `//` and `%` satisfy `a == (a // b) * b + a % b`; the remainder has the divisor's sign.
    #[test]
    fn division_rounds_down_as_pythons_does() {
        for a in -9..=9 {
            for b in (-4..=4).filter(|b| *b != 0) {
                let quotient = (a as f64 / b as f64).floor() as i64;
                assert_eq!(binary(Token::FloorDiv, a, b).ok(), Some(quotient), "{a} // {b}");
                assert_eq!(binary(Token::Mod, a, b).ok(), Some(a - quotient * b), "{a} % {b}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_64_bits_is_a_failure_that_says_so() {
        for (operator, a, b) in [
            (Token::Add, MOST, 1),
            (Token::Mul, 1 << 62, 2),
            (Token::Mul, i64::MIN, -1),
            (Token::FloorDiv, i64::MIN, -1),
            (Token::Mod, i64::MIN, -1),
        ] {
            let failure = binary(operator, a, b).err().map(|Failure(text)| text);
            assert!(failure.is_some_and(|text| text.contains("overflows 64 bits") && text.contains(&a.to_string())));
        }
    }

    #[test]
    fn division_by_zero_is_a_failure() {
        for operator in [Token::FloorDiv, Token::Mod] {
            assert!(binary(operator, 5, 0).is_err());
        }
    }

    #[test]
    fn extremes_are_taken() {
        assert_eq!(binary(Token::Min, -3, 7).ok(), Some(-3));
        assert_eq!(binary(Token::Max, -3, 7).ok(), Some(7));
        assert_eq!(binary(Token::Min, MOST, i64::MIN).ok(), Some(i64::MIN));
    }

    #[test]
    fn sums_of_products() {
        let size = sum(&[(4, &[]), (3, &[0]), (-2, &[0, 1]), (1, &[1, 1])]);
        assert_eq!(size.eval(&[5, 7]).ok(), Some(4 + 15 - 70 + 49));
    }

    #[test]
    fn sums_overflow_in_a_product_and_in_the_sum() {
        assert!(sum(&[(1, &[0, 0])]).eval(&[1 << 32]).is_err());
        assert!(sum(&[(MOST, &[]), (1, &[0])]).eval(&[1]).is_err());
        assert_eq!(sum(&[(MOST, &[]), (-1, &[0])]).eval(&[1]).ok(), Some(MOST - 1));
    }

    #[test]
    fn programs_use_their_stack_in_order() {
        // (n - m) * 2 + max(n // 3, m)
        let tokens = [
            Token::Symbol(0),
            Token::Push(-1),
            Token::Symbol(1),
            Token::Mul,
            Token::Add,
            Token::Push(2),
            Token::Mul,
            Token::Symbol(0),
            Token::Push(3),
            Token::FloorDiv,
            Token::Symbol(1),
            Token::Max,
            Token::Add,
        ];
        assert_eq!(stack_depth(&tokens), 3);
        assert_eq!(Size::Expr(tokens.into()).eval(&[20, 4]).ok(), Some(32 + 6));
    }

    #[test]
    fn linear_sizes_are_told_from_others() {
        let linear = sum(&[(4, &[]), (3, &[0]), (-2, &[1]), (6, &[])]).as_linear();
        assert_eq!(linear.map(|(constant, parts)| (constant, parts.to_vec())), Some((10, vec![(3, 0), (-2, 1)])));
        assert_eq!(Size::Symbol(2).as_linear().map(|(c, p)| (c, p.to_vec())), Some((0, vec![(1, 2)])));
        assert!(sum(&[(1, &[0, 1])]).as_linear().is_none());
        assert!(sum(&[(MOST, &[]), (1, &[])]).as_linear().is_none());
        assert!(Size::Expr([Token::Push(1)].into()).as_linear().is_none());
    }

    #[test]
    fn sizes_that_are_all_numbers_are_static() {
        let fixed = Dims::new(vec![Size::Const(2), Size::Const(3)]);
        assert_eq!(fixed.as_static(), Some(&[2, 3][..]));
        let open = Dims::new(vec![Size::Const(2), Size::Symbol(0)]);
        assert_eq!(open.as_static(), None);
        let mut room = Numbers::from_slice(&[9, 9, 9]);
        assert_eq!(open.resolve(&[5], &mut room).ok(), Some(&[2, 5][..]));
        assert_eq!(fixed.resolve(&[], &mut room).ok(), Some(&[2, 3][..]));
    }

    #[test]
    fn symbols_are_found_by_name() {
        let mut symbols = Symbols::default();
        symbols.add("n".into(), false);
        symbols.add("scale".into(), true);
        assert_eq!(symbols.position("scale").ok(), Some(1));
        assert_eq!(symbols.words(), [("n".to_owned(), false), ("scale".to_owned(), true)]);
    }
}
