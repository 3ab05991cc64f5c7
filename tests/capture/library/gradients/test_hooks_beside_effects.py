"""Hooks of backwards inside a step, beside other features: recurrent layers over packed sequences, NumPy
random numbers, autocast, aliases, module state, breaks, data-dependent errors, calls without gradients."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import pycompiler
from tests.harness.compare import assert_same


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True)
        self.a, self.b, self.out, self.act = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3), nn.ReLU()
        self.register_buffer("counted", torch.zeros(4))
        self.calls = 0

    def forward(self, words: torch.Tensor, lengths: Any) -> torch.Tensor:
        packed = pack_padded_sequence(self.words(words), lengths, batch_first=True, enforce_sorted=False)
        y, _ = pad_packed_sequence(self.layers(packed)[0], batch_first=True)
        z = self.act(self.a(y))
        made: torch.Tensor = self.out(z + self.b(z) * z.sigmoid())
        return made


def mixed(net: Net, w: torch.Tensor, t: torch.Tensor, log: list[Any], optimizer: Any) -> Any:
    share, k = np.random.beta(0.3, 0.3), random.randint(0, 3)

    def clip(module: nn.Module, given: Any, out: torch.Tensor) -> None:
        if out.requires_grad:
            out.register_hook(lambda g: (log.append(g.mean()), g.clamp(-0.01, 0.01))[1])

    hooks = [net.b.register_full_backward_hook(lambda m, gi, go: log.append((k, gi[0].norm(), go[0].sum())))]
    hooks.append(net.a.register_forward_hook(clip))
    try:
        optimizer.zero_grad()
        out = net(w, [3, 2, 4])
        loss = share * F.cross_entropy(out.flatten(0, 1), t.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach(), out.detach().argmax(-1), share
    finally:
        for hook in hooks:
            hook.remove()


def counted(net: Net, w: torch.Tensor, t: torch.Tensor, log: list[Any], optimizer: Any) -> Any:
    def count(module: nn.Module, gi: Any, go: Any) -> None:
        net.counted += go[0].pow(2).sum()
        net.calls += 1
        log.append((module.out_features, net.calls))

    hooks = [m.register_full_backward_hook(count) for m in net.modules() if isinstance(m, nn.Linear)]
    out = net(w, [4, 4, 1])
    with torch.no_grad():
        top = out.max()
    out[..., 0].sum().backward(retain_graph=True)
    (out * t.unsqueeze(-1)).sum().backward()
    for hook in hooks:
        hook.remove()
    pycompiler.graph_break()
    return net.counted * 2, top, net.calls


def asked(net: Net, w: torch.Tensor, t: torch.Tensor, log: list[Any], optimizer: Any) -> Any:
    x = net.words(w)
    x.register_hook(log.append)
    with torch.autocast("cpu", torch.bfloat16):
        y = net.a(x)
        y.register_hook(lambda g: log.append((g.dtype, torch.is_autocast_enabled("cpu"))))
        z = net.b(y).float()
    try:
        loss = F.cross_entropy(net.out(z).flatten(0, 1), t.flatten())
    except IndexError as error:
        log.append(str(error))
        return np.random.rand()
    return torch.autograd.grad(loss, [x, net.a.weight, net.words.weight])


def aliased(net: Net, w: torch.Tensor, t: torch.Tensor, log: list[Any], optimizer: Any) -> Any:
    x = net.words(w).detach().requires_grad_()
    y = net.a(x)
    view, turned = y[:, :2], y.transpose(0, 1)
    y.register_hook(lambda g: log.append(g.shape))
    view.register_hook(lambda g: log.append(g.sum()))
    turned.register_hook(lambda g: g * 2)
    (view.sum() + (turned * turned).sum() + y.mean()).backward()
    detached = x.detach()
    detached.add_(1)
    return x.grad, detached, x.sum().detach()


def stored(net: Net, w: torch.Tensor, t: torch.Tensor, log: list[Any], optimizer: Any) -> Any:
    def store(module: nn.Module, gi: Any, go: Any) -> None:
        module.last = go[0].detach()

    hooks = [m.register_full_backward_hook(lambda m, gi, go: log.append((len(gi), go[0] * 1))) for m in (net.a, net.b)]
    hooks.append(net.b.register_full_backward_pre_hook(lambda m, go: (go[0] * 3,)))
    hooks.append(net.b.register_full_backward_hook(lambda m, gi, go: (gi[0] * 0.5,), prepend=True))
    hooks.append(net.a.register_full_backward_hook(store))
    net(w, [1, 4, 2]).square().mean().backward()
    for hook in hooks:
        hook.remove()
    last = net.a.last
    del net.a.last
    return last


def flat(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [flat(v) for v in value] if isinstance(value, (list, tuple)) else value


def run(fn: Any, wrap: Any) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    net = Net()
    optimizer, fn, seen = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9), wrap(fn), list[Any]()
    for bad, grads in ((False, True), (False, True), (True, True), (False, False), (False, True)):
        log: list[Any] = []
        w, t = torch.randint(0, 9, (3, 4)), torch.randint(0, 3, (3, 4)) + 5 * bad
        try:
            with torch.set_grad_enabled(grads):
                result = fn(net, w, t, log, optimizer)
        except (RuntimeError, IndexError, AttributeError) as error:
            result = type(error).__name__
        tables = [len(m._backward_hooks) + len(m._forward_hooks) + len(m._backward_pre_hooks) for m in net.modules()]
        state = [net.counted, net.calls, torch.rand(1), np.random.rand(), random.random(), tables]
        seen.append(flat([result, log, *(p.grad for p in net.parameters()), *net.parameters(), *state]))
    return seen, fn


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [mixed, counted, asked, aliased, stored])
def test_it_is_eagers(fn: Any, backend: str) -> None:
    found, compiled = run(fn, lambda f: pycompiler.compile(f, backend=backend, dynamic=backend == "eager" or None))
    assert_same(found, run(fn, lambda f: f)[0], tolerance=1e-5)
    assert compiled.counters()["limit_hits"] == 0


@pytest.mark.parametrize("fn", [mixed, asked, aliased, stored])
def test_it_is_one_graph(fn: Any) -> None:
    net = Net()
    given = net, torch.randint(0, 9, (3, 4)), torch.randint(0, 3, (3, 4)), [], torch.optim.SGD(net.parameters(), 0.1)
    report = pycompiler.explain(fn)(*given)
    assert (report.graph_count, report.graph_break_count) == (1, 0), report.break_reasons
