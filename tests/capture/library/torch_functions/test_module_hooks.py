"""Module hooks that a function registers and removes again: one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

import pycompiler


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


MODEL = Model()


def features(x: torch.Tensor) -> Any:
    found: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        return lambda module, given, out: found.__setitem__(name, out)

    handles = [part.register_forward_hook(keep(name)) for name, part in MODEL.layers.named_children()]
    y = MODEL(x)
    for handle in handles:
        handle.remove()
    return y, found, MODEL(x)


def changes_results(x: torch.Tensor) -> Any:
    first = MODEL.layers[0].register_forward_hook(lambda m, given, out: out * 2)
    second = MODEL.layers[0].register_forward_hook(lambda m, given, kw, out: out + 1, prepend=True, with_kwargs=True)
    pre = MODEL.layers[2].register_forward_pre_hook(lambda m, given: (given[0] - 1,))
    try:
        return MODEL(x)
    finally:
        first.remove()
        second.remove()
        pre.remove()
        pre.remove()


def as_manager(x: torch.Tensor) -> Any:
    with MODEL.layers[1].register_forward_hook(lambda m, given, out: out.cos(), always_call=True):
        y = MODEL(x)
    return y, MODEL(x)


def state() -> Any:
    parts = [*MODEL.modules()]
    return [(dict(m._forward_hooks), dict(m._forward_pre_hooks), dict(m._forward_hooks_with_kwargs)) for m in parts]


@pytest.mark.parametrize("backend", ["native", "eager"])
@pytest.mark.parametrize("fn", [features, changes_results, as_manager])
def test_one_graph(fn: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    before = state()
    for n in (2, 3, 3, 5, 5):
        x = torch.randn(n, 4)
        grads, ids = [], []
        for call in (fn, compiled):
            MODEL.zero_grad()
            begun, compiles = RemovableHandle.next_id, compiled.counters()["compiles"]
            made = call(x)
            if compiles == compiled.counters()["compiles"]:  # a compile creates handles too
                ids.append(RemovableHandle.next_id - begun)
            (made if isinstance(made, torch.Tensor) else made[0]).sum().backward()
            grads.append((made, [p.grad for p in MODEL.parameters()]))
        torch.testing.assert_close(*grads)
        assert len({*ids}) == 1 and ids[0] > 0
        assert state() == before
    assert compiled.counters()["compiles"] == 2  # sizes become symbols; no compile in each call
    assert compiled.counters()["eager_calls"] == 0


def test_a_hook_that_was_there_runs_too() -> None:
    seen: list[Any] = []
    handle = MODEL.layers[0].register_forward_hook(lambda m, given, out: seen.append(out.shape))
    try:
        compiled, x = pycompiler.compile(features, fullgraph=True), torch.randn(3, 4)
        torch.testing.assert_close(compiled(x), features(x))
        assert seen == [(3, 5)] * 4
    finally:
        handle.remove()
    seen.clear()
    torch.testing.assert_close(compiled(x), features(x))
    assert not seen


def stays(x: torch.Tensor) -> Any:
    handle = MODEL.layers[1].register_forward_hook(lambda m, given, out: out + 1)
    return MODEL(x), handle


def removes(x: torch.Tensor, handle: RemovableHandle) -> Any:
    y = MODEL(x)
    handle.remove()
    return y, MODEL(x)


def test_a_hook_that_stays() -> None:
    x = torch.randn(3, 4)
    report = pycompiler.explain(stays)(x)
    for part in MODEL.modules():
        part._forward_hooks.clear()
    assert report.graph_break_count == 0
    leaving, ending = pycompiler.compile(stays), pycompiler.compile(removes)
    for _ in range(3):
        wanted, other = stays(x)
        other.remove()
        y, handle = leaving(x)
        torch.testing.assert_close(MODEL(x), y)
        torch.testing.assert_close(wanted, y)
        with_hook, without = ending(x, handle)
        torch.testing.assert_close(with_hook, y)
        torch.testing.assert_close(without, MODEL(x))
        assert not MODEL.layers[1]._forward_hooks


def test_a_break_between_is_as_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        handle = MODEL.layers[1].register_forward_hook(lambda m, given, out: out + 1)
        y = MODEL(x)
        pycompiler.graph_break()
        handle.remove()
        return y, MODEL(x)

    compiled, x = pycompiler.compile(program), torch.randn(3, 4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), program(x))
        assert not MODEL.layers[1]._forward_hooks


@torch.compiler.disable
def seen_before(module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def test_equal_blocks_with_hooks_of_their_own() -> None:
    """torch numbers the hooks of a process.  Blocks whose hooks differ in their numbers run the same entries."""
    blocks = [nn.Sequential(nn.Linear(3, 3), nn.ReLU()) for _ in range(20)]
    for block in blocks:
        block.register_forward_pre_hook(seen_before, prepend=True, with_kwargs=True)
    model = nn.Sequential(*blocks)
    compiled = pycompiler.compile(model)
    x = torch.randn(2, 3)
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))
    counters = pycompiler.counters(compiled)
    assert counters["limit_hits"] == 0
    assert counters["compiles"] < 20
    before = counters["compiles"]
    blocks[5].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    assert torch.equal(compiled(x), model(x))
    assert pycompiler.counters(compiled)["compiles"] > before
