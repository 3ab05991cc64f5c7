"""NumPy scalars as Python numbers, which torch functions accept.

In: the operands of a NumPy operator or function, as far as guards or symbols know them.  Out: the Python number that
equals the result.  It is a symbol if NumPy computes as Python does; otherwise a constant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycompiler.capture.arrays import numpy_calls
from pycompiler.capture.arrays.numpy_calls import COMPARED, OPERATORS, PYTHONS, UNARY, argument, power_of, record
from pycompiler.capture.breaks import Break
from pycompiler.capture.values.array import Array, is_number, is_wrapped
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, Symbolic
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import numpy_arrays
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbols import expr_of

LEAST, GREATEST = -(2**63), 2**63 - 1
SUMS = frozenset({"add", "subtract", "multiply", "negative", "positive"})
DIVISIONS = frozenset({"remainder", "floor_divide"})
COMPARISONS = frozenset(OPERATORS[op] for op in COMPARED)


@dataclass(frozen=True)
class Operand:
    """A Python number, and the class of the program's operand: NumPy's or Python's."""

    number: Value
    cls: type

    def settled(self) -> Any:
        number = self.number.const("as a NumPy number")
        return number if self.cls in (int, float, bool) else self.cls(number)


def call_function(cx: Capture, fn: Any, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A function of NumPy on numbers or arrays."""
    values = [cx.realize(v) for v in args]
    known = None
    if not kwargs and not is_wrapped(cx):
        known = _product(cx, values[0]) if name == "prod" and len(values) == 1 else _ufunc(cx, fn, name, values)
    if known is not None:
        return known
    if any(isinstance(v, Symbolic) for v in values) and name not in numpy_arrays.MAKES and not is_wrapped(cx):
        if all(isinstance(v, PLAIN_VALUES) for v in values):  # numbers alone, which NumPy computes at once
            args = [cx.realize(v, "as an argument of a NumPy function") for v in values]
    return numpy_calls.call_function(cx, fn, name, args, kwargs)


def _ufunc(cx: Capture, fn: Any, name: str, values: list[Value]) -> Value | None:
    """The result of an elementwise function on numbers known in each call; None for other operands."""
    if (
        not numpy_arrays.is_ufunc(fn)
        or len(values) != fn.nin
        or not any(isinstance(v, (Array, Symbolic)) for v in values)
    ):
        return None
    return elementwise(cx, name, fn, values)


def binary(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """`left <op> right` or a comparison, also in place, on known numbers; None for other operands."""
    plain = op in OPERATORS or (isinstance(left, Array) and left.scalar)
    name = OPERATORS.get(op if op in OPERATORS else op[:-1])
    return elementwise(cx, name, PYTHONS[name], [left, right]) if plain and name is not None else None


def unary(cx: Capture, op: str, value: Value) -> Value | None:
    return elementwise(cx, UNARY[op], PYTHONS[UNARY[op]], [value])


def elementwise(cx: Capture, name: str, fn: Callable[..., Any], values: list[Value]) -> Value | None:
    """The elementwise result of `fn`, an operator or NumPy function, on known numbers; None for other operands.

    The operands' values are read only if torch uses the number.
    """
    if is_wrapped(cx) or not all(map(_is_known, values)) or cx.call_builtin(numpy_arrays.raises_errors, [], {}).const():
        return None
    cls = _class_of(fn, [v.python_type() for v in values])
    if cls is None:
        return None

    def known() -> Value | None:
        numbers = [(_python(v), v.python_type()) for v in values]
        operands = [Operand(n, c) for n, c in numbers if n is not None]
        return _combined(cx, name, fn, operands, cls) if len(operands) == len(numbers) else None

    if not any(isinstance(v, Array) for v in values):  # Python's numbers only
        return _known_number(cx, cls, known)

    def make() -> Tensor:
        try:
            power = fn is operator.pow
            plain = [cx.realize(v, "beside an array") for v in values] if power else values
            called = power_of(*plain) if power else name
            found = record(cx, numpy_arrays.function, [Const(called), *plain], {}, scalar=True)
        except Break:
            number = made.number()
            if number is None:
                raise
            return _tensor_of(cx, cls, number)
        assert isinstance(found, Array)
        return found.tensor

    made = Array.number_of(cls, make, known)
    return made


def _known_number(cx: Capture, cls: type, known: Callable[[], Value | None]) -> Array:
    """A NumPy scalar known only by its value."""

    def make() -> Tensor:
        number = made.number()
        assert number is not None
        return _tensor_of(cx, cls, number)

    made = Array.number_of(cls, make, known)
    return made


def _tensor_of(cx: Capture, cls: type, number: Value) -> Tensor:
    dtype = argument(cx, cx.make(cls))
    made = cx.graph.call_function(
        numpy_arrays.scalar, [dtype, cx.realize(number, "as an array without dimensions")], {}
    )
    assert isinstance(made, Tensor)
    return made


def _is_known(value: Value) -> bool:
    if isinstance(value, Array):
        return value.scalar and value.may_be_known
    return isinstance(value, Symbolic) or (isinstance(value, Const) and is_number(value.value))


def _python(value: Value) -> Value | None:
    """The Python number of a value; None if it is not known."""
    if isinstance(value, Array):
        return value.number()
    if isinstance(value, Const) and numpy_arrays.is_number(value.value):
        return Const(value.value.item())
    return value


def _class_of(fn: Callable[..., Any], classes: Sequence[type]) -> type | None:
    """The class of the scalar that `fn` returns for such scalars; None if it returns another object, or raises."""
    try:
        with numpy_arrays.quietly():
            made = fn(*(cls(1) for cls in classes))
    except Exception:
        return None
    return type(made) if numpy_arrays.is_number(made) else None


def _combined(cx: Capture, name: str, fn: Callable[..., Any], operands: Sequence[Operand], cls: type) -> Value:
    """The result of `fn`, a scalar of class `cls` (or `bool`), as a Python number."""
    symbols = any(not isinstance(o.number, Const) for o in operands)
    made = _as_python(cx, name, operands, cls) if symbols else None
    if made is not None:
        return made
    return Const(cx.evaluate_raw(fn, *(o.settled() for o in operands)).item())


def _as_python(cx: Capture, name: str, operands: Sequence[Operand], cls: type) -> Value | None:
    """The result computed by Python's operators; None if NumPy's result may differ."""
    floats = [o.number.python_type() is float for o in operands]
    if name in UNARY_FUNCTIONS:
        return UNARY_FUNCTIONS[name](cx, operands[0].number)
    fn = PYTHONS.get(name)
    wide = [o.cls in (int, float) or numpy_arrays.numpy().dtype(o.cls).itemsize == 8 for o in operands]  # type: ignore[union-attr]
    if fn is None or not all(wide) or any(o.number.python_type() is bool for o in operands):
        return None
    numbers = [o.number for o in operands]
    if name in COMPARISONS:
        return cx.call_builtin(fn, numbers, {}) if len({*floats}) == 1 else None
    module = numpy_arrays.numpy()
    if cls is module.float64:  # type: ignore[union-attr]
        exact = name in SUMS
        exact |= name == "divide" and floats[0] and isinstance(numbers[1], Const) and numbers[1].value != 0
        return cx.call_builtin(fn, numbers, {}) if exact else None
    if cls is not module.int64 or not (name in SUMS or name in DIVISIONS and _is_positive(cx, numbers[1])):  # type: ignore[union-attr]
        return None
    made = cx.call_builtin(fn, numbers, {})
    return made if _fits(cx, made) else None


def _product(cx: Capture, shape: Value) -> Value | None:
    """`numpy.prod` of sizes; None if it does not fit into 64 bits, or for other arguments."""
    if not isinstance(shape, (Tuple, List)) or shape.cls not in (tuple, list, torch.Size):
        return None
    sizes = [cx.realize(v) for v in shape.items]
    plain = all(isinstance(v, PLAIN_VALUES) and v.python_type() is int for v in sizes)
    if not plain or not any(isinstance(v, Symbolic) for v in sizes):
        return None
    made: Value = Const(1)
    for size in sizes:
        made = cx.call_builtin(operator.mul, [made, size], {})
        if not _fits(cx, made):
            return None
    return _known_number(cx, numpy_arrays.numpy().int64, lambda: made)  # type: ignore[union-attr]


def _root(cx: Capture, number: Value) -> Value | None:
    """`numpy.sqrt` of a size."""
    sym = _symbol(number)
    size = sym is not None and _is_positive(cx, number) and cx.sizes.known_symbols.bounded([expr_of(sym)])
    return cx.call_builtin(math.sqrt, [number], {}) if size else None


def _rounded(fn: Callable[[float], int]) -> Callable[[Capture, Value], Value | None]:
    """The rounded float of a number whose rounded value is above zero, since a zero has a sign."""

    def made(cx: Capture, number: Value) -> Value | None:
        found = cx.call_builtin(fn, [number], {}) if number.python_type() is float else None
        return cx.call(cx.make(float), [found], {}) if found is not None and _is_positive(cx, found) else None

    return made


UNARY_FUNCTIONS: dict[str, Callable[[Capture, Value], Value | None]] = {
    "sqrt": _root, "ceil": _rounded(math.ceil), "floor": _rounded(math.floor),
}  # fmt: skip


def _symbol(number: Value) -> torch.SymInt | None:
    """The SymInt of an integer that is not a constant."""
    sym = getattr(number, "sym", None)
    return sym if isinstance(sym, torch.SymInt) else None


def _fits(cx: Capture, number: Value) -> bool:
    """Whether an integer fits into 64 bits, recorded as an assumption."""
    sym, symbols = _symbol(number), cx.sizes.symbols
    if sym is None or symbols is None:
        return isinstance(number, Const) and LEAST <= number.value <= GREATEST
    return bool(symbols.at_least(expr_of(sym), LEAST) and symbols.at_least(Expr.of(GREATEST), expr_of(sym)))


def _is_positive(cx: Capture, number: Value) -> bool:
    """Whether an integer is above zero, recorded as an assumption."""
    sym, symbols = _symbol(number), cx.sizes.symbols
    if sym is None or symbols is None:
        return isinstance(number, Const) and type(number.value) is int and number.value > 0
    return bool(symbols.at_least(expr_of(sym), 1))
