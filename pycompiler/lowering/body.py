"""Construction of a loop body: `BodyBuilder` collects SSA ops, `Val` is a handle of an op with Python's operators.

In: Python code over handles.  Out: `Op`s.  Example, silu in a body `b`:

    x = b.load("in0", index, torch.float32)
    y = x * x.sigmoid()

Equal ops are one op (common subexpressions).  Constants fold where torch's result is certain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from pycompiler.ir.loops import Op
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbolic_node import Real

Number = int | float | bool
_COMPUTE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which arithmetic on `dtype` is done."""
    return _COMPUTE.get(dtype, dtype)


def converted(number: Number, source: torch.dtype, target: torch.dtype) -> Number | None:
    """A number converted to another dtype; None if the result depends on the processor (a float beyond the integers'
    range)."""
    made = torch.tensor(number, dtype=source)
    if source.is_floating_point and not (target.is_floating_point or target.is_complex or target == torch.bool):
        info = torch.iinfo(target)
        return int(made) if math.isfinite(made) and info.min <= int(made) <= info.max else None
    found: Number = made.to(target).item()
    return found


class BodyBuilder:
    """Ops in order; `emit` gives a handle, the same one for an equal op."""

    def __init__(self, ranges: Mapping[str, Expr]) -> None:
        """`ranges`: the sizes of the loop's variables."""
        self.ranges = ranges
        self.ops: list[Op] = []
        self._known: dict[object, Val] = {}

    def emit(self, name: str, args: tuple[Val, ...], dtype: torch.dtype, attrs: tuple[Any, ...] = ()) -> Val:
        op = Op(name, tuple(a.at for a in args), dtype, attrs)
        # 0.0 == -0.0 and 1 == True, but they are different constants.
        key = (op, str(attrs[0])) if name == "const" else op
        found = self._known.get(key)
        if found is None:
            self.ops.append(op)
            found = self._known[key] = Val(self, len(self.ops) - 1, dtype)
        return found

    def real(self, value: Real) -> Val:
        """A float known in a call, computed in double as in Python: kernels receive its bits."""
        assert value.name is not None, value
        return self.emit("bitcast", (self.index(Expr.sym(value.name)),), torch.float64)

    def const(self, value: Number | Real, dtype: torch.dtype) -> Val:
        if isinstance(value, Real):
            return self.real(value).to(dtype)
        if dtype == torch.bool:
            value = bool(value)
        elif dtype.is_floating_point:
            value = float(value)
        elif isinstance(value, float):
            value = int(value) if math.isfinite(value) else 0
        return self.emit("const", (), dtype, (value,))

    def load(self, buffer: str, index: Expr, dtype: torch.dtype) -> Val:
        return self.emit("load", (), dtype, (buffer, index))

    def index(self, e: Expr) -> Val:
        if e.is_const:
            return self.const(e.as_int(), torch.int64)
        return self.emit("index", (), torch.int64, (e,))


class Val:
    """The value of op `at`.  Operators take numbers too, as constants of this value's dtype."""

    __slots__ = ("at", "body", "dtype")

    def __init__(self, body: BodyBuilder, at: int, dtype: torch.dtype) -> None:
        self.body, self.at, self.dtype = body, at, dtype

    @property
    def constant(self) -> Number | None:
        op = self.body.ops[self.at]
        return op.attrs[0] if op.name == "const" else None

    @property
    def expr(self) -> Expr:
        """The value of an integer op as an index expression."""
        op = self.body.ops[self.at]
        if op.name == "index":
            found: Expr = op.attrs[0]
            return found
        value = self.constant
        return Expr.of(int(value)) if value is not None else Expr.sym(f"%{self.at}")

    def like(self, value: Number) -> Val:
        return self.body.const(value, self.dtype)

    def to(self, dtype: torch.dtype) -> Val:
        """Conversion as torch's: to bool is `!= 0`, float to integer truncates."""
        if dtype == self.dtype:
            return self
        value = self.constant
        if isinstance(value, int | float):
            made = converted(value, self.dtype, dtype)
            # A conversion that rounds keeps the cast.
            if made is not None and not (dtype in _COMPUTE or dtype == torch.float32):
                return self.body.const(made, dtype)
            if made is not None and (float(value) == 0 or (abs(value) <= 256 and float(value).is_integer())):
                return self.body.const(made, dtype)
        return self.body.emit("cast", (self,), dtype)

    def op(self, name: str, *others: Val | Number) -> Val:
        """`name` applied to this value and `others`, all of this dtype."""
        args = (self, *(o if isinstance(o, Val) else self.like(o) for o in others))
        return self.body.emit(name, args, self.dtype)

    def test(self, name: str, *others: Val | Number) -> Val:
        """A comparison: the result is bool."""
        args = (self, *(o if isinstance(o, Val) else self.like(o) for o in others))
        return self.body.emit(name, args, torch.bool)

    def where(self, yes: Val | Number, no: Val | Number) -> Val:
        """yes if this bool value holds, else no (one of them must be a handle)."""
        if not isinstance(yes, Val):
            if not isinstance(no, Val):
                raise TypeError("where of two numbers has no dtype: make one a handle")
            yes = no.like(yes)
        no = no if isinstance(no, Val) else yes.like(no)
        if self.constant is not None:
            return yes if self.constant else no
        return self.body.emit("where", (self, yes, no), yes.dtype)

    def __add__(self, o: Val | Number) -> Val:
        return self.op("add", o)

    def __radd__(self, o: Number) -> Val:
        return self.like(o) + self

    def __sub__(self, o: Val | Number) -> Val:
        return self.op("sub", o)

    def __rsub__(self, o: Number) -> Val:
        return self.like(o) - self

    def __mul__(self, o: Val | Number) -> Val:
        if not isinstance(o, Val) and o == 1 and self.dtype != torch.bool:
            return self
        return self.op("mul", o)

    def __rmul__(self, o: Number) -> Val:
        return self * o

    def __truediv__(self, o: Val | Number) -> Val:
        n = o.constant if isinstance(o, Val) else o
        if isinstance(n, int | float) and self.dtype.is_floating_point and n != 0 and math.isfinite(n):
            if 2.0**-60 <= abs(n) <= 2.0**60 and math.frexp(n)[0] in (0.5, -0.5):  # 1/n is exact
                return self * (1.0 / n)
        return self.op("truediv", o)

    def __rtruediv__(self, o: Number) -> Val:
        return self.like(o) / self

    def __neg__(self) -> Val:
        return self.op("neg")

    def __and__(self, o: Val) -> Val:
        return self.op("and", o)

    def __or__(self, o: Val) -> Val:
        return self.op("or", o)

    def __invert__(self) -> Val:
        return self.op("not")

    def __lt__(self, o: Val | Number) -> Val:
        return self.test("lt", o)

    def __le__(self, o: Val | Number) -> Val:
        return self.test("le", o)

    def __gt__(self, o: Val | Number) -> Val:
        return self.test("gt", o)

    def __ge__(self, o: Val | Number) -> Val:
        return self.test("ge", o)

    def eq(self, o: Val | Number) -> Val:
        return self.test("eq", o)

    def ne(self, o: Val | Number) -> Val:
        return self.test("ne", o)
