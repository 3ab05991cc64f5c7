"""Changes between two calls: closures, attributes, modules, defaults of the process, numbers."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from tests.reports.core import report, scenario


@scenario(197811, "Closures of one code object over two methods of Tensor")
def closures_over_methods(compile: Any) -> Any:
    def make(op: Any) -> Any:
        return lambda x, y: op(x, y)

    x, y = torch.tensor(6.0), torch.tensor(3.0)
    return [compile(make(op))(x, y) for op in (torch.Tensor.__add__, torch.Tensor.__mul__, torch.Tensor.__sub__)]


@scenario(197859, "An entry of a module's __dict__ hides its submodule of that name")
def hidden_submodule(compile: Any) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = _linear(1.0)

        def forward(self, x: Any) -> Any:
            return self.part(x)

    net = Net()
    compiled, x = compile(net), torch.arange(4.0)
    before = compiled(x)
    object.__setattr__(net, "part", _linear(5.0))
    return before, compiled(x)


def _linear(value: float) -> Any:
    layer = nn.Linear(4, 4, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


@scenario(194976, "clamp by a float that is another one in each call, with gradients")
def bound_of_each_call(compile: Any) -> Any:
    def fn(x: Any, limit: float) -> Any:
        gate, up = torch.chunk(x, 2, dim=-1)
        return nn.functional.silu(gate).clamp(max=limit) * up.clamp(min=-limit, max=limit)

    compiled, seen = compile(fn), []
    for limit in (0.5, 1.0, 0.25, 2.0):
        x = torch.linspace(-3, 3, 16, requires_grad=True)
        y = compiled(x, limit)
        y.sum().backward()
        seen.append((y, x.grad))
    return seen


@report(166253, "full of a float64 tensor's value, which changes", exact=True)
def full_of_value() -> Any:
    return lambda x: torch.full((2,), x, dtype=torch.float64), *(
        lambda v=v: (torch.tensor(v, dtype=torch.float64),) for v in (5.0, 10.0)
    )


@scenario(176851, "An attribute of a class changes between calls")
def class_attribute(compile: Any) -> Any:
    class State:
        factor = 1.0

    compiled, seen = compile(lambda x: x * State.factor), []
    for factor in (1.0, 10.0, 2):
        State.factor = factor
        seen.append(compiled(torch.tensor([4.0])))
    return seen


@scenario(115774, "A tensor attribute is written by forward, and replaced between calls")
def replaced_attribute(compile: Any) -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cache = torch.tensor([0, 0])

        def forward(self, x: Any, at: Any) -> Any:
            self.cache[at] = x
            return self.cache

    net = Net()
    compiled = compile(net)
    first = compiled(torch.tensor([2]), torch.tensor([0])).clone()
    net.cache = torch.tensor([0, 0])
    return first, compiled(torch.tensor([1]), torch.tensor([1]))


@scenario(184405, "Factories without a dtype after set_default_dtype")
def default_dtype(compile: Any) -> Any:
    def fn() -> Any:
        return torch.ones(2), torch.zeros(2), torch.tensor([1.0, 2.0]), torch.arange(2.0), torch.full((2,), 0.5)

    return _under_dtypes(compile(fn))


@scenario(109458, "get_default_dtype after set_default_dtype")
def read_default_dtype(compile: Any) -> Any:
    return _under_dtypes(compile(lambda: (torch.get_default_dtype(), torch.tensor(1) + 1.5)))


def _under_dtypes(compiled: Any) -> Any:
    seen = []
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            seen.append(compiled())
    finally:
        torch.set_default_dtype(torch.float32)
    return seen


@dataclasses.dataclass
class _Held:
    value: Any


_held = _Held(torch.tensor(0))


@scenario(191821, "A nested region reads a global that its caller replaces before each call")
def region_and_global(compile: Any) -> Any:
    @torch.compiler.nested_compile_region
    def region() -> Any:
        return _held.value + 1

    def fn(x: Any) -> Any:
        global _held
        for _ in range(2):
            _held = _Held(x)
            x = region()
        return x

    return compile(fn)(torch.tensor(0))


@scenario(192905, "A region within a region branches by a flag of its module")
def region_in_region(compile: Any) -> Any:
    class Layer(nn.Module):
        def __init__(self, flag: bool) -> None:
            super().__init__()
            self.flag = flag

    @torch.compiler.nested_compile_region
    def inner(layer: Any, x: Any) -> Any:
        return x.sin() if layer.flag else x.cos()

    @torch.compiler.nested_compile_region
    def outer(layer: Any, x: Any) -> Any:
        return inner(layer, x) + 1.0

    layers = [Layer(k % 2 == 0) for k in range(4)]
    return compile(lambda x: sum(outer(layer, x) for layer in layers))(torch.linspace(-1, 1, 8))


@scenario(196173, "Branches by the identity of objects that a call changes", described=True)
def identities(compile: Any) -> Any:
    class Node:
        def __init__(self) -> None:
            self.count = 0

    a, b = Node(), Node()

    def fn(x: Any, p: Any, q: Any) -> Any:
        p.count += 1
        if p is q:
            q.count += 10
            return x * 2
        q.count += 100
        return x + 1

    compiled, x = compile(fn), torch.ones(2)
    made = [compiled(x, p, q) for p, q in ((a, b), (a, a), (b, a), (b, b), (a, b))]
    return made, a.count, b.count


@scenario(138112, "Two functions share a nonlocal that one of them assigns")
def shared_nonlocal(compile: Any) -> Any:
    z, k = 1, 2

    def make() -> Any:
        def inner(x: Any) -> None:
            nonlocal k, z
            k = z

        return inner

    def run(inner: Any, x: Any) -> Any:
        nonlocal z
        z = 3
        inner(x)
        return x.cos()

    made = compile(lambda x: run(make(), x))(torch.zeros(2))
    return made, z, k


@scenario(102414, "A graph break inside of autocast inside of an inlined function", cuda=True)
def break_in_autocast(compile: Any) -> Any:
    def inner(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = torch.mm(x, y)
            print(end="")
            return torch.sin(z)

    def fn(x: Any, y: Any) -> Any:
        z = torch.mm(x, y)
        return z + inner(x, y), torch.mm(x, y)

    return compile(fn)(torch.rand(3, 3), torch.rand(3, 3))


@scenario(102315, "The truth of an empty ModuleList")
def empty_list(compile: Any) -> Any:
    empty, full = nn.ModuleList(), nn.ModuleList([nn.ReLU()])

    def fn(x: Any) -> Any:
        return x + (1 if empty else 2), x + (10 if bool(full) else 20), bool(empty)

    return compile(fn)(torch.zeros(1))
