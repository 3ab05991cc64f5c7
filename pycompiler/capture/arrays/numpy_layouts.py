"""Strides of NumPy results: torch's results may have other strides, or be views where NumPy copies.

In: a NumPy call in the graph, and its torch result.  Out: the result with NumPy's strides.  NumPy itself is probed with
small arrays of the arguments' layouts.  For contiguous arguments results are contiguous, except for functions in
`ALWAYS_PROBED`.
Example: for an array in Fortran order and one in C order, ``a + b`` is in C order.
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
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.symbolic_numbers import Symbolic, is_unbacked
from pycompiler.capture.values.tensor import Tensor
from pycompiler.operators import numpy_arrays
from pycompiler.operators.result_strides import in_order
from pycompiler.symbolic.concretize import Concretizer, symbols_in

ALWAYS_PROBED = frozenset({"einsum"})  # returns views and other orders for contiguous arguments
MOST = 1 << 16  # elements of an array built for a probe
FEW = 4  # elements per dimension of an array that represents a larger one
ResultLayout = tuple[tuple[int, ...], tuple[int, ...], bool]  # shape, strides in elements, whether it is a view


def with_numpy_layout(
    cx: Capture, target: Callable[..., Any], args: Sequence[Value], kwargs: dict[str, Value], made: Value
) -> Value:
    """The result of a call with NumPy's layout."""
    name = "" if target is numpy_arrays.scalar else str(args[0].const())
    given = [*_tensors([*args, *kwargs.values()])]
    results = [*_tensors([made])]
    fakes = [t.fake for t in given]
    by_arrays = name == "__getitem__" and any(isinstance(v, (Tensor, List)) for v in _parts(args[2]))
    if not given or not results or name in numpy_arrays.IN_PLACE:
        return made
    ordered = all(map(_is_in_order, fakes)) and all(_is_in_order(t.fake) for t in results)
    if ordered and name not in ALWAYS_PROBED and not by_arrays:
        return made
    lie = _probed_layouts(target, name, args, kwargs, fakes, [t.fake for t in results])
    if lie is None and ordered and by_arrays and all(t.rank < 2 for t in results):
        return made
    if lie is None:
        raise Break("unsupported-operation", f"numpy.{name} of arrays that are not contiguous")
    return _laid(cx, name, made, fakes, iter(lie))


def _parts(key: Value) -> Sequence[Value]:
    return key.items if isinstance(key, Tuple) else [key]


def _laid(cx: Capture, name: str, made: Value, given: Sequence[torch.Tensor], lie: Iterator[ResultLayout]) -> Value:
    if isinstance(made, (Tuple, List)):
        return type(made)([_laid(cx, name, v, given, lie) for v in made.items])
    if not isinstance(made, Tensor):
        return made
    shape, strides, view = next(lie)
    today = Concretizer().twin(made.fake)
    shares = any(_memory(made.fake) == _memory(g) for g in given)
    agree = all(a == b for n, a, b in zip(shape, strides, today.stride(), strict=True) if n > 1) or 0 in shape
    if view and not (shares and agree and name in numpy_arrays.VIEWS):
        raise Break("unsupported-operation", f"numpy.{name}, which returns a view")
    if agree and (view or not shares):
        return made
    if not _is_same(strides, in_order(shape, strides), shape):
        raise Break("unsupported-operation", f"numpy.{name}, which returns an array with gaps in memory")
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], shape[d] == 1))
    laid = cx.graph.call_function(numpy_arrays.copy_in_order, [made, Tuple([Const(d) for d in order])], {})
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


def _probed_layouts(
    target: Callable[..., Any], name: str, args: Sequence[Value], kwargs: dict[str, Value],
    given: Sequence[torch.Tensor], results: Sequence[torch.Tensor],
) -> list[ResultLayout] | None:  # fmt: skip
    """The layouts of the results; None if they are unknown or depend on symbolic sizes."""
    both = (*given, *results)
    if any(is_unbacked(n) for t in both for n in (*t.shape, *t.stride()) if isinstance(n, torch.SymInt)):
        return None
    found = _probe(target, name, args, kwargs, given, results, Concretizer())
    symbols = next(filter(None, map(symbols_in, both)), None)
    if found is None or symbols is None:
        return found
    other = Concretizer(sizes={n: 2 * size for n, size in symbols.hints.items()})
    there = _probe(target, name, args, kwargs, given, results, other)
    alike = there is not None and all(map(_is_alike, found, there))
    return found if alike else None


def _is_alike(here: ResultLayout, there: ResultLayout) -> bool:
    """Whether the dimensions have the same order."""
    first, second = (
        sorted((d for d, n in enumerate(lie[0]) if n > 1), key=lie[1].__getitem__) for lie in (here, there)
    )
    return here[2] == there[2] and first == second


def _probe(
    target: Callable[..., Any], name: str, args: Sequence[Value], kwargs: dict[str, Value],
    given: Sequence[torch.Tensor], results: Sequence[torch.Tensor], today: Concretizer,
) -> list[ResultLayout] | None:  # fmt: skip
    twins = [today.twin(t) for t in (*given, *results)]
    small = all(max(numpy_arrays.span(t.shape, t.stride()), t.numel()) <= MOST for t in twins)
    most = None if small or name in numpy_arrays.VIEWS else FEW
    made: list[Any] = []

    def real(value: Value) -> Any:
        if isinstance(value, Tensor):
            made.append(numpy_arrays.stand_in(today.twin(value.fake), most))
            return made[-1]
        if isinstance(value, (Tuple, List)):
            return (list if isinstance(value, List) else tuple)(map(real, value.items))
        if isinstance(value, Slice):
            return slice(*map(real, value.parts))
        if isinstance(value, Symbolic):
            return today.of(value.sym)
        if isinstance(value, (Const, Class)):
            return value.const() if isinstance(value, Const) else value.cls
        raise Break("unsupported-operation", f"{value.describe()} beside arrays that are not contiguous")

    call = _numpy_function(target, name)
    positional, named = (
        [real(v) for v in (args if target is numpy_arrays.scalar else args[1:])],
        {k: real(v) for k, v in kwargs.items()},
    )
    try:
        with numpy_arrays.quietly(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [*_leaves(call(*positional, **named))]
    except Exception:  # NumPy rejects the stand-in values, which are not the program's
        return None
    shapes = [tuple(n if most is None else min(n, most) for n in t.shape) for t in twins[len(given) :]]
    if [v.shape for v in found] != shapes:
        return None
    return [numpy_arrays.layout_and_sharing(v, made) for v in found]


def _numpy_function(target: Callable[..., Any], name: str) -> Callable[..., Any]:
    module = numpy_arrays.numpy()
    if target is numpy_arrays.scalar:
        return lambda dtype, value: module.asarray(value).astype(dtype)  # type: ignore[union-attr]
    if target is numpy_arrays.attribute:
        return lambda array: getattr(array, name)
    if target is numpy_arrays.method:
        return lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs)
    known = "power" if name == "power of a number" else name
    return functools.reduce(getattr, known.split("."), module)  # type: ignore[return-value]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from _leaves(v)
    elif numpy_arrays.is_array(value) or numpy_arrays.is_number(value):
        yield value
