"""Operators that read numbers from a tensor, if these are known (`capture/recording/constant_tensors.py`): operators of
packed sequences, and `tensor_split`.

In: a torch call that reads lengths, `batch_sizes` (the number of sequences that have a step), or split indices.
Out: operators whose shapes do not depend on data.  For unknown numbers None; the graph then breaks at the original
call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Sequence, Tuple
from pycompiler.capture.values.tensor import METHODS, Tensor
from pycompiler.ir import higher_order

Found = Callable[[Capture, Args, Kwargs], Value | None]


def _or_eagers(fn: Any) -> Callable[[Found], Found]:
    """Register a handler of an operator; if it returns None, the original call is recorded."""

    def register(found: Found) -> Found:
        @builtin(fn)
        def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
            given = [cx.realize(v) for v in args]
            plain = kwargs.keys() <= {"dim"} and not cx.functions.concerns(given, {}) and not cx.graph.levels
            made = found(cx, given, kwargs) if plain else None
            return cx.graph.call_function(fn, args, kwargs) if made is None else made

        return found

    return register


def _numbers(cx: Capture, value: Value) -> list[int] | None:
    """The numbers in a one-dimensional tensor, if they are known."""
    real = cx.graph.folded.of(value.fake) if isinstance(value, Tensor) and not value.is_special else None
    return None if real is None or real.dtype is not torch.int64 or real.dim() != 1 else real.tolist()


def _tensor(cx: Capture, numbers: list[int]) -> Value:
    return cx.graph.call_function(torch.tensor, [List([*map(Const, numbers)])], {"device": Const(torch.device("cpu"))})


def _places(cx: Capture, numbers: list[int], like: Tensor) -> Value:
    """An index tensor on a tensor's device."""
    return cx.graph.call_function(torch.tensor, [List([*map(Const, numbers)])], {"device": Const(like.device)})


@_or_eagers(torch._VF._pack_padded_sequence)
def pack(cx: Capture, args: Args, kwargs: Kwargs) -> Value | None:
    padded, lengths, first = args if len(args) == 3 else (None, None, None)
    numbers = _numbers(cx, lengths) if lengths is not None else None
    if numbers is None or not isinstance(padded, Tensor) or padded.is_special or padded.rank < 2:
        return None
    batch_first = cx.truth(first)  # type: ignore[arg-type]
    places = (0, 1) if batch_first else (1, 0)
    batch, longest = (padded.shape[k] for k in places)
    falling = all(a >= b for a, b in zip(numbers, numbers[1:], strict=False))
    if not numbers or len(numbers) != batch or numbers[-1] <= 0 or not falling or not longest >= numbers[0]:
        return None
    steps = numbers[0]
    # sizes become numbers, even if they are symbols
    for place, count in zip(places, (len(numbers), steps), strict=True):
        if type(padded.shape[place]) is not int or padded.shape[place] != count:
            shorter = cx.graph.call_method("narrow", [padded, Const(place), Const(0), Const(count)], {})
            assert isinstance(shorter, Tensor)
            padded = shorter
    sizes = [sum(n > t for n in numbers) for t in range(numbers[0])]
    rows = [b * steps + t if batch_first else t * len(numbers) + b for t, n in enumerate(sizes) for b in range(n)]
    flat = cx.graph.call_method("flatten", [padded, Const(0), Const(1)], {})
    data = cx.graph.call_method("index_select", [flat, Const(0), _places(cx, rows, padded)], {})
    return Tuple([data, _tensor(cx, sizes)])


@_or_eagers(torch._VF._pad_packed_sequence)
def pad(cx: Capture, args: Args, kwargs: Kwargs) -> Value | None:
    if len(args) != 5 or not isinstance(args[0], Tensor) or args[0].is_special:
        return None
    data, (_, first, padding, longest) = args[0], args[1:]
    sizes, total = _numbers(cx, args[1]), cx.realize(longest, "as the length of sequences")
    if sizes is None or not isinstance(total, Const) or type(total.value) is not int or not sizes:
        return None
    steps, batch = max(total.value, len(sizes)), sizes[0]
    falling = all(a >= b for a, b in zip(sizes, sizes[1:], strict=False))
    if 0 < total.value < len(sizes) or not falling or sum(sizes) != data.shape[0]:
        return None
    rows = [t * batch + b for t, n in enumerate(sizes) for b in range(n)]
    shape = Tuple([Const(steps * batch), *(cx.make(n) for n in data.shape[1:])])
    empty = cx.graph.call_method("new_full", [data, shape, padding], {})
    flat = cx.graph.call_method("index_copy", [empty, Const(0), _places(cx, rows, data), data], {})
    made = cx.graph.call_method("unflatten", [flat, Const(0), Tuple([Const(steps), Const(batch)])], {})
    if cx.truth(first):
        made = cx.graph.call_method("transpose", [made, Const(0), Const(1)], {})
    return Tuple([made, _tensor(cx, [sum(n > b for n in sizes) for b in range(batch)])])


def _layers(name: str) -> Found:
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value | None:
        if len(args) != 9 or not isinstance(args[1], Tensor):
            return None
        data, sizes, hidden, weights, biases, layers, dropout, train, both = args
        numbers = _numbers(cx, sizes)
        if numbers is None or not isinstance(weights, Sequence):
            return None
        flags = [v.const("as an option of a recurrent layer") for v in (biases, layers, dropout, train, both)]
        if flags[2] and flags[3]:
            raise Break("unsupported-operation", "dropout between recurrent layers over packed sequences")
        held = [cx.realize(v) for v in hidden.items] if isinstance(hidden, Sequence) else [hidden]
        tensors = [data, *held, *map(cx.realize, weights.items)]
        if not all(isinstance(t, Tensor) and not t.is_special for t in tensors):
            return None
        return cx.graph.call_inner(
            higher_order.packed_layers,
            [],
            [name, tuple(numbers), tuple(flags), isinstance(hidden, Sequence), len(held), *tensors],
        )

    return call


@_or_eagers(torch.tensor_split)
def split(cx: Capture, args: Args, kwargs: Kwargs) -> Value | None:
    if len(args) < 2 or not isinstance(args[1], Tensor):
        return None
    real = cx.graph.folded.of(args[1].fake)
    if real is None or real.dtype is not torch.int64 or real.dim() > 1:
        return None
    places: Value = Tuple([*map(Const, real.tolist())]) if real.dim() else Const(real.item())
    return cx.graph.call_function(torch.tensor_split, [args[0], places, *args[2:]], kwargs)


METHODS["tensor_split"] = lambda cx, args, kwargs: cx.call(cx.make(torch.tensor_split), args, kwargs)
for _name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
    _or_eagers(getattr(torch._VF, _name))(_layers(_name))
