"""Python's own semantics: iterators, containers, classes, properties, exceptions, NumPy."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.reports.core import report, scenario


@scenario(169253, "forward appends to a list of its class")
def list_of_class(compile: Any) -> Any:
    class Net(nn.Module):
        items: list[Any] = []

        def forward(self, x: Any) -> None:
            Net.items.append(x)

    compiled = compile(Net())
    for k in range(2):
        compiled(torch.full((2,), float(k)))
    return Net.items


@report(192872, "A list of a class that the function makes, across a graph break")
def class_across_break() -> Any:
    def fn(x: Any) -> Any:
        class Holder:
            items: list[int] = []

        Holder.items.append(1)
        y = x * 2
        print(end="")
        Holder.items.append(2)
        return (y * 3).sum() + len(Holder.items)

    return fn, lambda: (torch.ones(3),)


@report(192272, "A list of a class that the function makes")
def class_within() -> Any:
    def fn(x: Any) -> Any:
        class Holder:
            items: list[int] = []

        Holder.items.append(1)
        return x + len(Holder.items)

    return fn, lambda: (torch.ones(3),)


@scenario(197896, "A method of a local class writes to a list and a dict of the enclosing function")
def method_writes_closure(compile: Any) -> Any:
    log: list[int] = []
    state = {"n": 0}

    class Helper:
        def touch(self, n: int) -> None:
            log.append(n)
            state["n"] += 1
            state[f"call {n}"] = n

    def fn(x: Any) -> Any:
        Helper().touch(x.shape[0])
        return x * 2

    compiled = compile(fn)
    made = [compiled(torch.ones(n)) for n in (2, 3, 2)]
    return made, log, state


@report(175855, "A generator grows the list that it iterates over")
def growing_list() -> Any:
    def fn(x: Any) -> Any:
        values = [x.sum()]

        def grow() -> Any:
            for item in values:
                if len(values) < 3:
                    values.append(item + 1)
                yield item

        return torch.stack(list(grow())).sum()

    return fn, lambda: (torch.ones(1),)


@report(133063, "list.extend takes a generator that reads the list's last item")
def extended_by_own_end() -> Any:
    steps = [lambda x: x + 1] * 3

    def fn(x: Any) -> Any:
        y = [x, x]
        y.extend(step(y[-1]) for step in steps)
        return y

    return fn, lambda: (torch.zeros(2),)


@report(196211, "iter() of a partly consumed reversed iterator is that iterator", described=True)
def iter_of_reversed() -> Any:
    def fn(x: Any) -> Any:
        it = reversed([3, 5, 7])
        first = next(it)
        again = iter(it)
        return x + first * 100 + next(again) * 10 + next(it), again is it, list(it)

    return fn, lambda: (torch.tensor(1),)


@report(152262, "next() of consumed iterators raises StopIteration")
def consumed_iterators() -> Any:
    def fn(x: Any) -> Any:
        found = []
        for it in (iter([1, 2]), reversed([1, 2]), (k for k in (1, 2)), zip([1], [2])):
            list(it)
            try:
                next(it)
                found.append("an item")
            except StopIteration:
                found.append("the end")
        return x.sin(), found

    return fn, lambda: (torch.tensor([1.0]),)


@scenario(198189, "OrderedDict.move_to_end of an argument")
def moved_to_end(compile: Any) -> Any:
    cache: Any = collections.OrderedDict(a=1, b=2, c=3)

    def touch(cache: Any, x: Any) -> Any:
        cache.move_to_end("a")
        return x + 1

    made = compile(touch)(cache, torch.ones(1))
    return made, list(cache), cache.popitem(last=False)


@scenario(198190, "A generator that a function returns is a generator: send, and the value it ends with")
def returned_generator(compile: Any) -> Any:
    def fn(x: Any) -> Any:
        def steps() -> Any:
            got = yield x * 1
            yield x * 2 + (got or 0)
            return "done"

        return steps()

    it = compile(fn)(torch.ones(2))
    seen: list[Any] = [next(it), it.send(5.0)]
    try:
        next(it)
    except StopIteration as end:
        seen.append(end.value)
    return seen


@report(176599, "A property with a setter of an object that the function makes")
def property_of_object() -> Any:
    class Box:
        def __init__(self, v: int) -> None:
            self._v = v

        @property
        def value(self) -> int:
            return self._v + 1

        @value.setter
        def value(self, v: int) -> None:
            self._v = v * 2

    def fn(x: Any) -> Any:
        box = Box(3)
        box.value = 5
        return x + box.value

    return fn, lambda: (torch.zeros(1),)


@scenario(174050, "An object whose __class__ is another class", described=True)
def other_class(compile: Any) -> Any:
    class Real:
        pass

    class Fake:
        @property
        def __class__(self) -> Any:
            return Real

    fake = Fake()

    def fn(x: Any) -> Any:
        return x + (1 if isinstance(fake, Real) else 2), x + (10 if type(fake) is Real else 20), fake.__class__ is Real

    return compile(fn)(torch.zeros(1))


@report(150110, "The type of dict.items()")
def type_of_items() -> Any:
    def fn(x: Any) -> Any:
        d = {"a": 1, "b": x}
        return type(d.items()).__name__, type(d.keys()).__name__, list(d.items())

    return fn, lambda: (torch.tensor(3),)


@report(196467, "torch.Tensor(x.size()) has that shape")
def tensor_of_size() -> Any:
    return lambda x: torch.Tensor((x @ torch.ones(10, 4)).size()).shape, lambda: (torch.randn(1, 10),)


class _Doubled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_function__(func, types, args, kwargs or {})
        return made * 2 if func is torch.Tensor.sin else made


@report(176679, "A subclass whose __torch_function__ doubles sin", described=True)
def doubled_sine() -> Any:
    def fn(x: Any) -> Any:
        return x.sin() + 1

    return fn, lambda: (torch.ones(3).as_subclass(_Doubled),)


for part, call in (
    ("cumsum", lambda a: np.cumsum(a)), ("square", lambda a: np.square(a)), ("median", lambda a: np.median(a)),
    ("any", lambda a: np.any(a.view(np.uint8))), ("sum", lambda a: np.sum(a.view(np.uint8))), ("divide", lambda a: a / a[:1]),
):  # fmt: skip
    report(198056, f"NumPy: dtype and shape of {part} of int8", exact=True, part=f" {part}")(
        lambda call=call: (call, lambda: (np.array([-128, -100, -3, 4, 5, 100, 127], dtype=np.int8),))
    )


@report(141343, "NumPy: 1 / x of a float64 scalar is a scalar")
def numpy_scalar() -> Any:
    return lambda x: 1 / x, lambda: (np.float64(12),)
