//! Floats that a plan computes: small programs over the environment.
//!
//! In: `symbolic.symbolic_node.Real` expressions over symbols.  Out: `Real`, evaluated as Python would.  Python itself
//! evaluates everything but plain arithmetic, and every operation that raises.

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyTuple};

use super::size::{Size, Symbols};
use crate::ffi::aten::{Failure, Outcome};
use crate::ffi::{Obj, Owned};

enum Token {
    Push(f64),
    Symbol(usize),
    /// An integer, converted to a float.
    Size(Size),
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Neg,
    Abs,
    /// Rounds to single precision.
    Single,
}

/// A float computed from symbols.  Its bits are stored at `env[into]`.
pub struct Real {
    into: usize,
    /// None if only Python can compute the float.
    tokens: Option<Box<[Token]>>,
    value: Py<PyAny>,
}

const DEPTH: usize = 32;
/// Largest integer up to which every integer is a float.
const EXACT: u64 = 1 << 53;

impl Real {
    pub fn compile(symbols: &Symbols, into: usize, value: &Bound<'_, PyAny>) -> PyResult<Real> {
        let mut tokens = Vec::new();
        let known = emit(symbols, value, &mut tokens)? && depth(&tokens) <= DEPTH;
        Ok(Real { into, tokens: known.then(|| tokens.into()), value: value.clone().unbind() })
    }

    /// Evaluates the float now.  False if Python has to do so.
    pub fn update(&self, env: &mut [i64]) -> bool {
        let native = self.tokens.as_ref().and_then(|tokens| run(tokens, env).unwrap_or(None));
        if let Some(value) = native {
            env[self.into] = value.to_bits() as i64;
        }
        native.is_some()
    }

    /// Evaluates the float in Python.  `names`: the name of each word of the environment, and whether the word is a
    /// float.
    pub fn by_python(&self, py: Python<'_>, names: &[(String, bool)], env: &mut [i64]) -> PyResult<()> {
        let known = Owned::dict()?;
        for ((name, is_float), word) in names.iter().zip(&*env) {
            let number = match is_float {
                true => Owned::float(f64::from_bits(*word as u64))?,
                false => Owned::int(*word)?,
            };
            known.dict_set(Owned::str(name)?.get(), number.get())?;
        }
        let eval = Obj::of(self.value.bind(py)).own().attr(c"eval")?;
        let value = eval.call(&[known.get()], None)?.into_bound(py).extract::<f64>()?;
        env[self.into] = value.to_bits() as i64;
        Ok(())
    }
}

/// The position of the symbol in `symbolic.symbolic_node.Real("symbol", (name,))`.  None for any other value.
pub fn leaf(symbols: &Symbols, value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if value.getattr("op")?.extract::<String>()? != "symbol" {
        return Ok(None);
    }
    let args = value.getattr("args")?.cast_into::<PyTuple>()?;
    symbols.position(&args.get_item(0)?.extract::<String>()?).map(Some)
}

/// False if the value is not plain arithmetic.
fn emit(symbols: &Symbols, value: &Bound<'_, PyAny>, out: &mut Vec<Token>) -> PyResult<bool> {
    if let Ok(number) = value.cast::<PyFloat>() {
        out.push(Token::Push(number.extract()?));
        return Ok(true);
    }
    let Some(op) = value.getattr_opt("op")? else {
        out.push(Token::Size(symbols.compile(value)?));
        return Ok(true);
    };
    if let Some(position) = leaf(symbols, value)? {
        out.push(Token::Symbol(position));
        return Ok(true);
    }
    let token = match op.extract::<String>()?.as_str() {
        "float" => None,
        "add" => Some(Token::Add),
        "sub" => Some(Token::Sub),
        "mul" => Some(Token::Mul),
        "truediv" | "int_truediv" => Some(Token::Div),
        "pow" => Some(Token::Pow),
        "neg" => Some(Token::Neg),
        "abs" => Some(Token::Abs),
        "float32" => Some(Token::Single),
        _ => return Ok(false),
    };
    for argument in value.getattr("args")?.try_iter()? {
        if !emit(symbols, &argument?, out)? {
            return Ok(false);
        }
    }
    out.extend(token);
    Ok(true)
}

fn depth(tokens: &[Token]) -> usize {
    let (mut now, mut most) = (0usize, 0usize);
    for token in tokens {
        match token {
            Token::Push(_) | Token::Symbol(_) | Token::Size(_) => now += 1,
            Token::Neg | Token::Abs | Token::Single => {}
            _ => now -= 1,
        }
        most = most.max(now);
    }
    most
}

/// Power of Python's floats, which is C's `pow`.  None where Python raises or returns a complex number.
fn power(a: f64, b: f64) -> Option<f64> {
    let raises = b.is_finite() && ((a == 0.0 && b < 0.0) || (a < 0.0 && a.is_finite() && b.fract() != 0.0));
    let value = if raises { return None } else { a.powf(b) };
    (value.is_finite() || !a.is_finite() || !b.is_finite()).then_some(value)
}

/// None if Python must evaluate the program; Python may raise.
fn run(tokens: &[Token], env: &[i64]) -> Outcome<Option<f64>> {
    let mut stack = [0f64; DEPTH];
    let mut top = 0usize;
    for token in tokens {
        let value = match token {
            Token::Push(value) => *value,
            Token::Symbol(at) => f64::from_bits(env[*at] as u64),
            Token::Size(size) => {
                let value = size.eval(env)?;
                if value.unsigned_abs() > EXACT {
                    return Ok(None);
                }
                value as f64
            }
            Token::Neg | Token::Abs | Token::Single => {
                top -= 1;
                match token {
                    Token::Neg => -stack[top],
                    Token::Abs => stack[top].abs(),
                    _ => f64::from(stack[top] as f32),
                }
            }
            Token::Add | Token::Sub | Token::Mul | Token::Div | Token::Pow => {
                top -= 2;
                let (a, b) = (stack[top], stack[top + 1]);
                match token {
                    Token::Add => a + b,
                    Token::Sub => a - b,
                    Token::Mul => a * b,
                    Token::Pow => match power(a, b) {
                        Some(value) => value,
                        None => return Ok(None),
                    },
                    _ if b == 0.0 => return Ok(None),
                    _ => a / b,
                }
            }
        };
        *stack.get_mut(top).ok_or_else(|| Failure("a float expression nests too deep".into()))? = value;
        top += 1;
    }
    Ok(Some(stack[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tokens: &[Token], env: &[i64]) -> Option<f64> {
        run(tokens, env).ok().flatten()
    }

    #[test]
    fn powers_are_pythons() {
        assert_eq!(power(2.0, 10.0), Some(1024.0));
        assert_eq!(power(-2.0, 3.0), Some(-8.0));
        assert_eq!(power(0.0, 0.0), Some(1.0));
        assert_eq!(power(0.0, -1.0), None); // ZeroDivisionError
        assert_eq!(power(-8.0, 1.0 / 3.0), None); // a complex number
        assert_eq!(power(10.0, 400.0), None); // OverflowError
        assert_eq!(power(f64::INFINITY, 2.0), Some(f64::INFINITY));
        assert_eq!(power(10.0, f64::NEG_INFINITY), Some(0.0));
        assert!(power(f64::NAN, 1.0).is_some_and(f64::is_nan));
    }

    #[test]
    fn division_by_zero_is_left_to_python() {
        let divide = |b: f64| value(&[Token::Push(1.0), Token::Push(b), Token::Div], &[]);
        assert_eq!(divide(0.0), None);
        assert_eq!(divide(-0.0), None);
        assert_eq!(divide(4.0), Some(0.25));
    }

    #[test]
    fn integers_that_are_no_floats_are_left_to_python() {
        let double = [Token::Size(Size::Symbol(0)), Token::Push(2.0), Token::Mul];
        assert_eq!(value(&double, &[21]), Some(42.0));
        assert_eq!(value(&double, &[1 << 53]), Some((1i64 << 54) as f64));
        assert_eq!(value(&double, &[(1 << 53) + 1]), None);
        assert_eq!(value(&double, &[i64::MIN]), None);
    }

    #[test]
    fn words_are_the_bits_of_floats() {
        let tokens = [Token::Symbol(0), Token::Neg, Token::Symbol(1), Token::Abs, Token::Sub];
        assert_eq!(value(&tokens, &[1.5f64.to_bits() as i64, (-4.0f64).to_bits() as i64]), Some(-5.5));
        assert_eq!(depth(&tokens), 2);
        assert_eq!(value(&[Token::Push(0.1), Token::Single], &[]), Some(f64::from(0.1f32)));
    }
}
