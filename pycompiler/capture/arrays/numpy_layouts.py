"""Where results of NumPy's lie: those of tensors lie otherwise, and are views where NumPy copies.

In: a call of NumPy's, as the graph has it, and what the graph's call gives.  Out: the same, laid out as NumPy lays it.
NumPy itself is asked, with small arrays of its own that lie as the arguments do; of arguments in order it gives what is in order,
but for `ASKED`.
Example: of an array in Fortran's order and one in C's, ``a + b`` is in C's.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic import Symbolic, is_late
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import arrays
from pycompiler.ir.strides import in_order
from pycompiler.ir.today import Today, symbols_in

ASKED = frozenset({"einsum"})  # gives views, and other orders, of what is in order
MOST = 1 << 16  # elements of an array that is made to ask
FEW = 4  # elements along a dimension of one that stands for a larger one
Lies = tuple[tuple[int, ...], tuple[int, ...], bool]  # shape, strides in elements, whether it is a view


def as_numpy(
    cx: Capture, target: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value], made: Value
) -> Value:
    """What a call gives, laid out as NumPy lays it."""
    name = "" if target is arrays.scalar else str(args[0].const())
    given = [*_tensors([*args, *kwargs.values()])]
    results = [*_tensors([made])]
    fakes = [t.fake for t in given]
    by_arrays = name == "__getitem__" and any(isinstance(v, (Tensor, List)) for v in _parts(args[2]))
    if not given or not results or name in arrays.IN_PLACE:
        return made
    ordered = all(map(_is_in_order, fakes)) and all(_is_in_order(t.fake) for t in results)
    if ordered and name not in ASKED and not by_arrays:
        return made
    lie = _asked(target, name, args, kwargs, fakes, [t.fake for t in results])
    if lie is None and ordered and by_arrays and all(t.fake.dim() < 2 for t in results):
        return made
    if lie is None:
        raise Break("unsupported-operation", f"numpy.{name} of arrays that do not lie in order")
    return _laid(cx, name, made, fakes, iter(lie))


def _parts(key: Value) -> Sequence[Value]:
    return key.items if isinstance(key, Tuple) else [key]


def _laid(cx: Capture, name: str, made: Value, given: Sequence[torch.Tensor], lie: Iterator[Lies]) -> Value:
    if isinstance(made, (Tuple, List)):
        return type(made)([_laid(cx, name, v, given, lie) for v in made.items])
    if not isinstance(made, Tensor):
        return made
    shape, strides, view = next(lie)
    today = Today().twin(made.fake)
    shares = any(_memory(made.fake) == _memory(g) for g in given)
    agree = all(a == b for n, a, b in zip(shape, strides, today.stride(), strict=True) if n > 1) or 0 in shape
    if view and not (shares and agree and name in arrays.VIEWS):
        raise Break("unsupported-operation", f"numpy.{name}, which gives a view")
    if agree and (view or not shares):
        return made
    if not _is_same(strides, in_order(shape, strides), shape):
        raise Break("unsupported-operation", f"numpy.{name}, which gives an array with gaps")
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1))
    laid = cx.graph.call_function(arrays.laid, [made, Tuple([Const(d) for d in order])], {})
    assert isinstance(laid, Tensor)
    return laid


def _is_same(strides: Sequence[int], others: Sequence[int], shape: Sequence[int]) -> bool:
    return 0 in shape or all(a == b for n, a, b in zip(shape, strides, others, strict=True) if n > 1)


def _memory(fake: torch.Tensor) -> int:
    return int(fake.untyped_storage()._cdata)


def _is_in_order(fake: torch.Tensor) -> bool:
    return fake.dim() == 0 or fake.is_contiguous()


def _tensors(values: Sequence[Value]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (Tuple, List)):
            yield from _tensors(value.items)


def _asked(
    target: Callable[..., Any], name: str, args: Sequence[Value], kwargs: dict[str, Value],
    given: Sequence[torch.Tensor], results: Sequence[torch.Tensor],
) -> list[Lies] | None:  # fmt: skip
    """How the results lie; None where that is not known, or depends on sizes that change."""
    both = (*given, *results)
    if any(is_late(n) for t in both for n in (*t.shape, *t.stride()) if isinstance(n, torch.SymInt)):
        return None
    found = _ask(target, name, args, kwargs, given, results, Today())
    symbols = next(filter(None, map(symbols_in, both)), None)
    if found is None or symbols is None:
        return found
    other = Today(sizes={n: 2 * size for n, size in symbols.hints.items()})
    there = _ask(target, name, args, kwargs, given, results, other)
    alike = there is not None and all(map(_is_alike, found, there))
    return found if alike else None


def _is_alike(here: Lies, there: Lies) -> bool:
    """Whether dimensions come in one order."""
    first, second = (
        sorted((d for d, n in enumerate(lie[0]) if n > 1), key=lie[1].__getitem__) for lie in (here, there)
    )
    return here[2] == there[2] and first == second


def _ask(
    target: Callable[..., Any], name: str, args: Sequence[Value], kwargs: dict[str, Value],
    given: Sequence[torch.Tensor], results: Sequence[torch.Tensor], today: Today,
) -> list[Lies] | None:  # fmt: skip
    twins = [today.twin(t) for t in (*given, *results)]
    small = all(max(arrays.span(t.shape, t.stride()), t.numel()) <= MOST for t in twins)
    most = None if small or name in arrays.VIEWS else FEW
    made: list[Any] = []

    def real(value: Value) -> Any:
        if isinstance(value, Tensor):
            made.append(arrays.stand_in(today.twin(value.fake), most))
            return made[-1]
        if isinstance(value, (Tuple, List)):
            return (list if isinstance(value, List) else tuple)(map(real, value.items))
        if isinstance(value, Slice):
            return slice(*map(real, value.parts))
        if isinstance(value, Symbolic):
            return today.of(value.sym)
        if isinstance(value, (Const, Class)):
            return value.const() if isinstance(value, Const) else value.cls
        raise Break("unsupported-operation", f"{value.describe()} beside arrays that do not lie in order")

    call = _numpys(target, name)
    positional, named = (
        [real(v) for v in (args if target is arrays.scalar else args[1:])],
        {k: real(v) for k, v in kwargs.items()},
    )
    try:
        with arrays.quietly(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [*_leaves(call(*positional, **named))]
    except Exception:  # it does not take these values: they are not the program's
        return None
    shapes = [tuple(n if most is None else min(n, most) for n in t.shape) for t in twins[len(given) :]]
    if [v.shape for v in found] != shapes:
        return None
    return [arrays.lies(v, made) for v in found]


def _numpys(target: Callable[..., Any], name: str) -> Callable[..., Any]:
    module = arrays.numpy()
    if target is arrays.scalar:
        return lambda dtype, value: module.asarray(value).astype(dtype)  # type: ignore[union-attr]
    if target is arrays.attribute:
        return lambda array: getattr(array, name)
    if target is arrays.method:
        return lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs)
    known = "power" if name == "power of a number" else name
    return functools.reduce(getattr, known.split("."), module)  # type: ignore[return-value]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _leaves(v)
    elif arrays.is_array(value) or arrays.is_number(value):
        yield value
