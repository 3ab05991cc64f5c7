"""Module hooks that a compiled function registers and leaves registered, and their handles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import pycompiler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 4), nn.Linear(4, 2)
        self.seen: list[Any] = []
        self.handles: list[RemovableHandle] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.two(self.one(x).relu())
        return y


def keep(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def stays(net: Net, x: torch.Tensor) -> Any:
    handle = net.one.register_forward_hook(keep)
    return net(x), handle


def several(net: Net, x: torch.Tensor) -> Any:
    first = net.one.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    gone = net.two.register_forward_hook(keep, with_kwargs=False)
    net.handles.append(net.two.register_forward_hook(lambda m, i, k, o: o - 1, with_kwargs=True))
    gone.remove()
    net.handles.append(net.one.register_forward_hook(keep, prepend=True, always_call=True))
    return net(x), first.id, [h.id for h in net.handles], list(net.two._forward_hooks)


def full(net: Net, x: torch.Tensor) -> Any:
    def note(module: nn.Module, given: Any, out: Any) -> None:
        net.seen.append(out[0].sum())

    net.handles.append(net.two.register_full_backward_hook(note))
    net(x).sum().backward()
    return net.one.weight.grad


def made(net: Net, x: torch.Tensor) -> Any:
    fresh = nn.Linear(3, 2)
    handle = fresh.register_forward_hook(keep)
    return fresh, handle, fresh(x)


def broken(net: Net, x: torch.Tensor) -> Any:
    handle = net.one.register_forward_hook(keep)
    y = net(x)
    pycompiler.graph_break()
    z = net(x)
    handle.remove()
    return y, z, net(x)


def counted(net: Net, x: torch.Tensor) -> Any:
    handle = net.one.register_forward_hook(keep)
    return net(x), handle.id % 1000003


PROGRAMS = {f.__name__: (f, breaks) for f, breaks in (
    (stays, 0), (several, 0), (full, 0), (made, 0), (broken, 1), (counted, 1),
)}  # fmt: skip


def run(fn: Callable[..., Any], net: Net, x: torch.Tensor) -> Any:
    first = RemovableHandle.next_id  # a compile creates handles too: ids are compared relatively
    torch.manual_seed(1)
    result = fn(net, x)
    tables = [(dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._backward_hooks), dict(m._forward_hooks_with_kwargs),
               dict(m._forward_hooks_always_called), m._is_full_backward_hook) for m in net.modules()]  # fmt: skip
    keys = [[tuple(k - first for k in t) if isinstance(t, dict) else t for t in ts] for ts in tables]
    after = net(x).detach()
    for value in result if isinstance(result, tuple) else ():
        if isinstance(value, RemovableHandle):
            assert value.hooks_dict_ref() is not None and value.id - first >= 0
            keys.append([tuple(value.__dict__)])
            value.remove()
    values = result if isinstance(result, tuple) else (result,)
    flat = [v.detach() for v in values if isinstance(v, torch.Tensor)]
    told = [[v] if type(v) is int else v for v in values if type(v) in (int, list)] if len(values) == 4 else []
    order = sorted({n for t in keys for ks in t if isinstance(ks, tuple) for n in ks if type(n) is int})
    ranked = [
        [tuple(map(order.index, k)) if k and type(k) is tuple and type(k[0]) is int else k for k in ks] for ks in keys
    ]
    known = [[order.index(n - first) for n in ns] for ns in told]
    assert all(n < RemovableHandle.next_id - first for n in order)
    return flat, after, net(x).detach(), ranked, known, len(net.seen)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_eagers(name: str, backend: str) -> None:
    fn, breaks = PROGRAMS[name]
    torch.manual_seed(0)
    net = Net()
    other = copy.deepcopy(net)
    compiled = pycompiler.compile(fn, backend=backend)
    compiled.__name__ = name
    for _ in range(3):
        x = torch.randn(2, 3)
        got, wanted = run(compiled, other, x), run(fn, net, x)
        torch.testing.assert_close(got[:3], wanted[:3])
        assert got[3:] == wanted[3:]
    if not breaks:
        report = pycompiler.explain(fn)(copy.deepcopy(Net()), torch.randn(2, 3))
        assert (report.graph_count, report.graph_break_count) == (1, 0), report.break_reasons
