"""Handlers of the operator module, arithmetic builtins, and operator.itemgetter and attrgetter."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.recording.wrap import wraps
from pycompiler.capture.semantics import operators
from pycompiler.capture.semantics.heap_polyfills import HEAPS
from pycompiler.capture.semantics.polyfills import POLYFILLS
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.attributes import MISSING, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Const, reference
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.source import Source


def _through_operator(text: str) -> Callable[[Capture, Args, Kwargs], Value]:
    return lambda cx, args, kwargs: operators.binary(cx, text, args[0], args[1])


for _text, (_op, _, _) in operators.BINARY.items():
    if _op is not divmod:
        builtin(_op)(_through_operator(_text))
for _text, (_iop, _) in operators.INPLACE.items():
    builtin(_iop)(_through_operator(_text))
for _text, (_cmp, _, _) in operators.COMPARE.items():
    builtin(_cmp)(lambda cx, args, kwargs, _t=_text: operators.compare(cx, _t, args[0], args[1]))  # type: ignore[misc]
for _text, (_un, _) in operators.UNARY.items():
    builtin(_un)(lambda cx, args, kwargs, _t=_text: operators.unary(cx, _t, args[0]))  # type: ignore[misc]


@builtin(operator.getitem)
def operator_getitem(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.getitem(cx, args[0], args[1])


@builtin(operator.setitem)
def operator_setitem(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].setitem(cx, args[1], args[2])
    return Const(None)


@builtin(operator.not_)
def operator_not(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.negation_of(cx, args[0])


@builtin(operator.truth)
def operator_truth(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.truth_of(cx, args[0])


@builtin(operator.is_)
def operator_is(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.identical(args[0], args[1]))


@builtin(operator.is_not)
def operator_is_not(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(not cx.identical(args[0], args[1]))


for _original, _polyfill in POLYFILLS.items():
    _register = constructor if isinstance(_original, type) else builtin
    _register(_original)(lambda cx, args, kwargs, _fn=_polyfill: cx.call(cx.make(_fn), args, kwargs))  # type: ignore[misc]


def _in_python(fn: Any, inlined: Callable[..., Any]) -> None:
    takes = inspect.signature(inlined)

    @builtin(fn)
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        try:
            takes.bind(*args, **kwargs)
        except TypeError:
            raise Break("builtin-call", f"{fn.__name__}() with arguments that it does not accept") from None
        return cx.call(cx.make(inlined), args, kwargs)


for _original, _polyfill in HEAPS.items():
    _in_python(_original, _polyfill)


@constructor(torch.Size)
def size(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    values = list(cx.elements(args[0])) if args else []
    if kwargs or len(args) > 1 or not all(isinstance(v, PLAIN_VALUES) and v.python_type() is int for v in values):
        return cx.evaluate(torch.Size, *args)
    return Tuple(values, torch.Size)


@builtin(torch.Size.numel)
def size_numel(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    total: Value = Const(1)
    for value in cx.elements(args[0]):
        total = operators.binary(cx, "*", total, value)
    return total


@builtin(operator.delitem)
def operator_delitem(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].delitem(cx, args[1])
    return Const(None)


def _joins(cls: type) -> bool:
    """Whether C takes instances for sequences."""
    return mro_lookup(cls, "__getitem__") is not MISSING and not issubclass(cls, (dict, torch.Tensor))


def _concat(cx: Capture, op: str, left: Value, right: Value) -> Value:
    if not _joins(left.python_type()):
        cx.throw(TypeError, f"{class_name(left.python_type())!r} object can't be concatenated")
    reflected = mro_lookup(right.python_type(), "__radd__") is not MISSING  # `__radd__` is not called
    if reflected or not _joins(right.python_type()) and isinstance(left, Object):
        raise Break("unsupported-operation", f"concat of {left.describe()} and {right.describe()}")
    return operators.binary(cx, op, left, right)


@builtin(operator.concat)
def operator_concat(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return _concat(cx, "+", *args)


@builtin(operator.iconcat)
def operator_iconcat(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return _concat(cx, "+=", *args)


@builtin(operator.countOf)
def operator_count_of(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(sum(cx.alike(v, args[1]) for v in cx.elements(args[0])))


@builtin(operator.contains)
def operator_contains(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(args[0].contains(cx, args[1]))


@builtin(operator.index)
def operator_index(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.index(args[0]))


@constructor(operator.itemgetter)
def itemgetter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        cx.throw(TypeError, "itemgetter expected 1 argument, got 0")
    return Getter(operator.itemgetter, args)


@constructor(operator.attrgetter)
def attrgetter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        cx.throw(TypeError, "attrgetter expected 1 argument, got 0")
    if not all(issubclass(v.python_type(), str) for v in args):
        cx.throw(TypeError, "attribute name must be a string")
    return Getter(operator.attrgetter, args)


@wraps(operator.itemgetter, operator.attrgetter)
def _existing(cx: Capture, real: Any, source: Source) -> Value:
    cx.guard("id_is", source, reference(real))
    cls, keys = real.__reduce__()
    return Getter(cls, [cx.make(key) for key in keys])


class Getter(Value):
    """operator.itemgetter or attrgetter."""

    def __init__(self, cls: type, keys: Args) -> None:
        self.cls = cls
        self.keys = keys

    def python_type(self) -> type:
        return self.cls

    def call(self, cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 1 or kwargs:
            raise Break(
                "builtin-call",
                f"a call of an {self.cls.__name__} with {len(args)} arguments and {len(kwargs)} keywords",
            )
        if self.cls is operator.itemgetter:
            found = [operators.getitem(cx, args[0], k) for k in self.keys]
        else:
            found = [self._attr(cx, args[0], k.const()) for k in self.keys]
        return found[0] if len(found) == 1 else Tuple(found)

    def _attr(self, cx: Capture, value: Value, path: str) -> Value:
        for name in path.split("."):
            value = cx.realize(operators.attribute(cx, value, name))
        return value


@builtin(abs)
def abs_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Tensor):
        return cx.graph.call_function(abs, args, {})
    if isinstance(args[0], Object):
        method = args[0].special(cx, "__abs__")
        if method is not None:
            return cx.call(method, [], {})
    return cx.evaluate(abs, args[0])


@builtin(pow)
def pow_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    base, exponent, *modulus = inspect.signature(pow).bind(*args, **kwargs).args
    if not modulus:
        return operators.binary(cx, "**", base, exponent)
    return cx.evaluate(pow, base, exponent, *modulus)


@builtin(divmod)
def divmod_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    left, right = args
    if any(isinstance(v, Array) for v in args):  # torch._numpy gives zeros another sign
        raise Break("builtin-call", "divmod of NumPy arrays")
    if all(isinstance(v, operators.OPERANDS) for v in args) and any(isinstance(v, Tensor) for v in args):
        names = " and ".join(repr(v.python_type().__name__) for v in args)
        cx.throw(TypeError, f"unsupported operand type(s) for divmod(): {names}")
    return operators.binary(cx, "divmod()", left, right)


@builtin(round)
def round_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object):
        method = args[0].special(cx, "__round__")
        if method is not None:
            return cx.call(method, args[1:], kwargs)
    if isinstance(args[0], Tensor):
        return cx.graph.call_function(round, args, kwargs)
    return cx.evaluate(round, *args, **kwargs)


@builtin(math.prod)
def math_prod(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", Const(1))
    for value in cx.elements(args[0]):
        total = operators.binary(cx, "*", total, value)
    return total
