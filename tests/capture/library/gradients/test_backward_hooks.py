"""Hooks with side effects that a backward inside the frame calls: values, order and effects match eager."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler
from tests.harness.compare import assert_same

Log = list[Any]
PROGRAMS: list[tuple[str, int, Callable[..., Any]]] = []


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(torch.tanh(self.one(x))) * x.sigmoid()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(3, 4), Block(), nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(self.block(self.first(x)).relu())
        return y


class Pair(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, scale: int) -> Any:
        return a * b * scale, a.exp(), b * 2, scale


def program(name: str, breaks: int = 0) -> Callable[[Callable[..., Any]], None]:
    return lambda fn: PROGRAMS.append((name, breaks, fn))


@program("GradCAM")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    acts: dict[str, torch.Tensor] = {}
    grads: dict[str, torch.Tensor] = {}
    forward = net.block.register_forward_hook(lambda m, i, o: acts.update(v=o.detach()))
    backward = net.block.register_full_backward_hook(lambda m, gi, go: grads.update(v=go[0].detach()))
    out = net(x)
    net.zero_grad()
    out[0, 1].backward()
    forward.remove()
    backward.remove()
    cam = (grads["v"].mean(0, keepdim=True) * acts["v"]).sum(1).relu()
    return out, cam / (cam.max() + 1e-8)


@program("gradients that a tensor's hook keeps")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(log.append)
    z = net.block(y)
    z.register_hook(lambda g: log.append(g * 2))
    (net.last(z) * y.sum()).sum().backward()
    return z.detach()


@program("hooks of each layer, in order")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    handles = []
    for name, m in net.named_modules():
        handles.append(m.register_full_backward_hook(lambda m, gi, go, name=name: log.append((name, *gi, *go))))
        handles.append(m.register_full_backward_pre_hook(lambda m, go, name=name: log.append((f"pre {name}", *go))))
    net(x).pow(2).sum().backward()
    for h in handles:
        h.remove()
    return None


@program("hooks that give other gradients")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    def clip(g: torch.Tensor) -> torch.Tensor:
        log.append(g.norm())
        return g.clamp(-0.1, 0.1)

    def double(m: nn.Module, gi: Any, go: Any) -> Any:
        log.append(go)
        return tuple(g * 2 for g in gi)

    def thrice(m: nn.Module, go: Any) -> Any:
        log.append(go)
        return (go[0] * 3,)

    handles = [net.block.register_full_backward_hook(double), net.block.two.register_full_backward_pre_hook(thrice)]
    y = net.first(x)
    y.register_hook(clip)
    y.register_hook(lambda g: g + 1)
    net.last(net.block(y)).sum().backward()
    for h in handles:
        h.remove()
    return None


@program("two backwards through one hook")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(lambda g: log.append(g.clone()))
    z = net.block(y)
    z.sum().backward(retain_graph=True)
    (z * 2).sum().backward()
    return None


@program("torch.autograd.grad")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(log.append)
    z = net.block(y)
    z.register_hook(lambda g: (log.append(g), g * 2)[1])
    return torch.autograd.grad(net.last(z).sum(), [y, z, net.first.weight])


@program("a hook that is removed before")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    gone, stays = y.register_hook(log.append), y.register_hook(lambda g: log.append(g * 5))
    gone.remove()
    net.last(y).sum().backward()
    return stays is not None


@program("what a hook writes")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    def count(g: torch.Tensor) -> None:
        net.seen += g.sum(0)
        log.append(net.last.weight.grad is not None and net.first.weight.grad is None)

    net.block(net.first(x)).register_hook(count)
    y = net.block(net.first(x))
    y.register_hook(count)
    net.last(y).sum().backward()
    return net.seen * 2


@program("several inputs and outputs")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    pair = Pair()
    pair.register_full_backward_hook(lambda m, gi, go: log.append(("full", gi, go)))
    pair.register_full_backward_pre_hook(lambda m, go: log.append(("pre", go)))
    y = net.first(x)
    a, b, c, n = pair(y, x.sum(1, keepdim=True), 3)
    (a.sum() + c.sum() * n).backward()
    return None


@program("draws random numbers")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = torch.dropout(net.first(x), 0.5, True)
    y.register_hook(lambda g: (log.append(g), g + torch.randn_like(g))[1])
    z = torch.dropout(net.block(y), 0.5, True)
    z.register_hook(lambda g: log.append(torch.rand(2)))
    z.sum().backward()
    return torch.rand(3)


@program("the grad mode in a hook")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(
        lambda g: log.append((torch.is_grad_enabled(), (net.last.weight * 2).requires_grad, g.requires_grad))
    )
    net.last(y).sum().backward()
    return torch.is_grad_enabled()


@program("a hook in place")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(lambda g: (log.append(g.clone()), g.mul_(3))[0])
    net.block(y).sum().backward()
    return None


@program("gradients that results keep")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.retain_grad()
    z = net.block(y)
    z.register_hook(lambda g: (log.append(g), g * 2)[1])
    z.retain_grad()
    net.last(z).sum().backward()
    return y.grad, z.grad


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0].clamp(-0.5, 0.5) + 1


@program("a Function in front of a hook")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.block(net.first(x))
    y.register_hook(log.append)
    Clipped.apply(net.last(y)).sum().backward()
    return None


@program("a Function behind a hook", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = Clipped.apply(net.first(x))
    z = net.block(y) + y
    z.register_hook(log.append)
    (z * y).sum().backward()
    return None


@program("a checkpoint beside a hook", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = checkpoint(net.block, net.first(x), use_reentrant=False)
    y.register_hook(log.append)
    net.last(y).sum().backward()
    return None


@program("a hook that raises", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    def refuse(g: torch.Tensor) -> None:
        log.append(g)
        raise RuntimeError("not this one")

    y = net.first(x)
    y.register_hook(refuse)
    net.last(net.block(y)).sum().backward()
    return None


@program("a hook that looks at data", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(lambda g: log.append("large" if g.norm() > 1 else "small"))
    net.last(net.block(y)).sum().backward()
    return y.detach()


@program("a break between the hook and the backward", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    handle = net.block.register_full_backward_hook(lambda m, gi, go: log.append(go))
    y = net.first(x)
    y.register_hook(log.append)
    z = net.last(net.block(y)).sum()
    pycompiler.graph_break()
    z.backward()
    handle.remove()
    return z.detach()


@program("a break behind the backward")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(log.append)
    net.last(net.block(y)).sum().backward()
    return y.detach()


@program("a loss with a hook, used again outside", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(log.append)
    z = net.block(y).sum()
    z.backward(retain_graph=True)
    pycompiler.graph_break()
    z.backward()
    return z.detach()


@program("what has a hook is written", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x) * 1
    y.register_hook(log.append)
    y.mul_(2)
    y.register_hook(lambda g: log.append(g * 3))
    net.last(y).sum().backward()
    return None


@program("what a module with a hook gives is written", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    handle = net.first.register_full_backward_hook(lambda m, gi, go: log.append(go))
    try:
        net.first(x).add_(1).sum().backward()
    finally:
        handle.remove()
    return None


@program("a gradient of another size", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    y = net.first(x)
    y.register_hook(lambda g: g.sum())
    net.last(y).sum().backward()
    return None


@program("a backward in a hook", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    def again(g: torch.Tensor) -> None:
        log.append(g)
        with torch.enable_grad():
            net.last(g).sum().backward()

    y = net.first(x)
    y.register_hook(again)
    net.block(y).sum().backward()
    return None


@program("a warning in a hook", 1)
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    def warn(g: torch.Tensor) -> None:
        log.append(g)
        warnings.warn("seen", stacklevel=2)

    y = net.first(x)
    y.register_hook(warn)
    net.block(y).sum().backward()
    return None


@program("without gradients")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    handle = net.block.register_full_backward_hook(lambda m, gi, go: log.append(go))
    with torch.no_grad():
        y = net(x)
    handle.remove()
    return y


@program("autocast")
def _(net: Net, x: torch.Tensor, log: Log) -> Any:
    handle = net.block.register_full_backward_hook(lambda m, gi, go: log.append((gi, go)))
    with torch.autocast("cpu", torch.bfloat16):
        y = net(x)
        y.float().sum().backward()
    handle.remove()
    return y.detach()


def run(fn: Callable[..., Any], net: Net, log: Log, x: torch.Tensor) -> Any:
    log.clear()
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            result = fn(net, x, log)
        except RuntimeError as e:
            result = str(e)
    kept = [None if p.grad is None else p.grad.clone() for p in net.parameters()]
    hooks = [len(m._forward_hooks) + len(m._backward_hooks) + len(m._backward_pre_hooks) for m in net.modules()]
    return (
        result,
        [*log],
        kept,
        net.seen.clone(),
        hooks,
        torch.get_rng_state().tolist(),
        [(str(w.message), w.filename, w.lineno) for w in seen],
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(("breaks", "fn"), [pytest.param(b, f, id=n) for n, b, f in PROGRAMS])
def test_it_is_eagers(breaks: int, fn: Callable[..., Any], backend: str) -> None:
    torch.manual_seed(0)
    net: Net = Net()
    other, log, other_log = copy.deepcopy(net), list[Any](), list[Any]()
    compiled = pycompiler.compile(fn, backend=backend)
    for rows in (2, 2, 3):
        x = torch.randn(rows, 3)
        expected = run(fn, net, log, x)
        assert_same(run(compiled, other, other_log, x), expected)
    if type(expected[0]) is str or backend != "native":  # it raises
        return
    report = pycompiler.explain(fn)(other, torch.randn(2, 3), [])
    assert bool(breaks) is bool(report.graph_break_count), report.break_reasons
    if not breaks:
        assert report.graph_count == 1
        assert compiled.counters()["compiles"] <= 3
