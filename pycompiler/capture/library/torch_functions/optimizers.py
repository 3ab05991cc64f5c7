"""Wrappers that torch.optim puts around its methods for torch.compile, which breaks its graphs there.  Here the methods
are inlined.

In: functions that torch creates in decorators, known by their code.  Out: rows of `calls.MADE_BY_TORCH`.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import _adafactor, adagrad, adam, asgd, sgd
from torch.optim.optimizer import _get_value, _use_grad_for_differentiable

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import MADE_BY_TORCH, Args, Kwargs, builtin
from pycompiler.capture.semantics import polyfills
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.keys import Key
from pycompiler.capture.values.containers.sequences import List, Sequence, Tuple
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.tensor import STAY_TENSORS, Tensor
from pycompiler.torch_compat import torch_compile


def _inner(decorator: Callable[..., Any]) -> types.CodeType:
    """The code of the function that a decorator creates."""
    codes = (c for c in decorator.__code__.co_consts if isinstance(c, types.CodeType))
    (code,) = (c for c in codes if c.co_name != "__annotate__")  # added by 3.14
    return code


def _wrapped(cx: Capture, fn: Function, name: str) -> Value:
    cells = dict(zip(fn.code.co_freevars, fn.closure(cx), strict=True))
    found = cells[name].contents
    assert found is not None
    return cx.realize(found)


def within_grad_mode(cx: Capture, fn: Function, args: Args, kwargs: Kwargs) -> Value | None:
    """`step` of an optimizer."""
    return cx.call(cx.make(polyfills.within_grad_mode), [_wrapped(cx, fn, "func"), *args], kwargs)


@builtin(_get_value)
def get_value(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`x.item()`. Eager computes with a float, so in double precision; in a graph it stays a tensor."""
    (value,) = (*args, *kwargs.values())
    value = cx.realize(value)
    if not isinstance(value, Tensor):
        return value
    number = None if cx.functions.concerns([value], {}) else cx.items.take(value)
    return number if number is not None else cx.call(value.getattr(cx, "item"), [], {})


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code of a function, and of its inner functions."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _codes(inner)


for _step in (
    asgd._single_tensor_asgd,
    asgd._multi_tensor_asgd,
    _adafactor._single_tensor_adafactor,
    _adafactor._multi_tensor_adafactor,
):
    STAY_TENSORS.update(_codes(_step.__code__))


INLINED = (torch.optim.Optimizer.zero_grad,)
"""Torch functions that torch.compile does not trace."""


def not_disabled(cx: Capture, fn: Function, args: Args, kwargs: Kwargs) -> Value | None:
    known = fn.real in INLINED or fn.real.__dict__.get("__wrapped__") is torch.random.manual_seed
    return cx.call(_wrapped(cx, fn, "fn"), args, kwargs) if known else None


def _apart(fused: types.FunctionType, each: Any) -> None:
    """Replace a fused step over lists by the step of each parameter.

    The compiler fuses by itself, and functionalisation refuses the fused kernels for empty lists.  Kernels compute
    small dtypes in single precision, so small dtypes keep the fused kernel.
    """

    @builtin(fused)
    def step(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        lists = [v for v in map(cx.realize, args) if isinstance(v, List)]
        found = [v for given in lists for v in map(cx.realize, given.items) if not cx.is_none(v)]
        wide = all(isinstance(v, Tensor) and v.dtype in WIDE for v in found)
        scaled = [v for v in (*args[len(lists) :], *map(kwargs.get, ("grad_scale", "found_inf"))) if v is not None]
        sparse = "has_sparse_grad" in kwargs and cx.truth(kwargs["has_sparse_grad"])
        plain = wide and not sparse and len(args) == len(lists) and all(map(cx.is_none, map(cx.realize, scaled)))
        return cx.inline(cx.make(each if plain else fused), args, kwargs)


WIDE = (torch.float32, torch.float64)
for _fused, _each in (
    (adam._fused_adam, adam._single_tensor_adam),
    (sgd._fused_sgd, sgd._single_tensor_sgd),
    (adagrad._fused_adagrad, adagrad._single_tensor_adagrad),
):
    _apart(torch_compile.original_of(_fused) or _fused, _each)  # type: ignore[arg-type]


@builtin(torch._C._group_tensors_by_device_and_dtype)
def grouped(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Lists of tensors, grouped by the devices and dtypes of the first list, in torch's own order."""
    lists = [cx.realize(v) for v in (args[0].items if args and isinstance(args[0], Sequence) else [])]
    items = [[cx.realize(v) for v in given.items] for given in lists if isinstance(given, Sequence)]
    plain = len(args) == 2 and not kwargs and items and len(items) == len(lists) and items[0]
    if (
        not plain
        or not all(isinstance(v, Tensor) for v in items[0])
        or any(len(v) not in (0, len(items[0])) for v in items)
    ):
        raise Break("builtin-call", "_group_tensors_by_device_and_dtype of values that are not lists of tensors")
    kinds = [(v.device, v.dtype) for v in items[0] if isinstance(v, Tensor)]
    empty = {(device, dtype): torch.empty(0, device=device, dtype=dtype) for device, dtype in dict.fromkeys(kinds)}
    asked, found = cx.truth(args[1]), dict[Key, Value]()
    for kind, (_, places) in torch._C._group_tensors_by_device_and_dtype([[empty[k] for k in kinds]], True).items():
        chosen = List([List([given[i] for i in places] if given else []) for given in items])
        found[cx.key(cx.make(kind))] = Tuple([chosen, List([Const(i) for i in places if asked])])
    return Dict(found)


MADE_BY_TORCH[_inner(_use_grad_for_differentiable)] = within_grad_mode
MADE_BY_TORCH[_inner(torch._disable_dynamo)] = not_disabled  # type: ignore[attr-defined]
