"""nn.Module: parameters, buffers, submodules, hooks, training, patches of instances and classes."""

from __future__ import annotations

import functools
import itertools
import random
import types
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_module

from fuzz.core import GONE, Knob, Scene, attr, calls, count, family, places, raw_attr


class Leaf(nn.Module):
    def __init__(self, k: int = 2) -> None:
        super().__init__()
        self.k = k
        self.weight = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> Any:
        return x * self.weight * self.k + self.scale


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = Leaf()
        self.layers = nn.ModuleList([Leaf(1), Leaf(3)])
        self.table = nn.ModuleDict({"a": Leaf(4)})
        self.act: Any = nn.ReLU()
        self.drop = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> Any:
        x = self.act(self.first(x))
        for layer in self.layers:
            x = layer(x)
        x = self.table["a"](self.drop(x))
        return x if self.training else x + 100


def nets() -> tuple[Any, Any, Any]:
    """A net of new classes; knobs may change them."""
    leaf = type("Leaf", (Leaf,), {})
    net_class = type("Net", (Net,), {})
    net = net_class().eval()
    for m in net.modules():
        if type(m) is Leaf:
            m.__class__ = leaf
    return net, leaf, net_class


def program(net: Any) -> Any:
    def fn(net: Any, x: Any) -> Any:
        return net(x)

    x = torch.ones(2, 4)
    return fn, lambda: (net, x)


def hook(register: Any, function: Any, cell: Any = None) -> Any:
    """A knob that adds a hook, with the same id each time, and removes it."""
    handles: list[Any] = []
    number = next(NUMBERS)

    def off() -> None:
        while handles:
            handles.pop().remove()

    def on() -> None:
        off()
        torch.utils.hooks.RemovableHandle.next_id = number
        handles.append(register(function))

    return calls(off, on, cell=cell)


NUMBERS = itertools.count(10**6)


# instance_absent, length: hooks, patches --------------------------------------------------------------------------
@family("length")
def hooks(rng: random.Random) -> Scene:
    net, _, _ = nets()
    fn, args = program(net)
    leaf, inner = net.first, net.layers[rng.randrange(2)]
    last, order = (lambda m, a, out: out + 7), ("hooks of the leaf",)
    return Scene(fn, args, {
        "forward": hook(leaf.register_forward_hook, lambda m, a, out: out + 1, order),
        "forward of another": hook(inner.register_forward_hook, lambda m, a, out: out * 2),
        "pre": hook(inner.register_forward_pre_hook, lambda m, a: (a[0] * 2,)),
        "root": hook(net.register_forward_hook, lambda m, a, out: out + 3),
        "with kwargs": hook(functools.partial(leaf.register_forward_hook, with_kwargs=True), lambda m, a, k, out: out - 1, order),
        "raw": calls(lambda: leaf._forward_hooks.pop(-1, None), lambda: leaf._forward_hooks.__setitem__(-1, last), cell=order),
        "global": hook(module_module.register_module_forward_hook, lambda m, a, out: out * 2 if m is net else None),
        "global pre": hook(module_module.register_module_forward_pre_hook, lambda m, a: (a[0] + 1,) if m is net else None),
        "unread": count(net),
    })  # fmt: skip


@family("instance_absent")
def module_patched(rng: random.Random) -> Scene:
    net, leaf_class, net_class = nets()
    fn, args = program(net)
    leaf = net.layers[1]
    call = nn.Module.__call__
    return Scene(fn, args, {
        "forward": attr(leaf, "forward", GONE, lambda x: x * 3, types.MethodType(lambda self, x: x - self.k, leaf)),
        "forward in vars": raw_attr(net.first, "forward", GONE, lambda x: x * 5),
        "_call_impl": raw_attr(leaf, "_call_impl", GONE, lambda x: x * 6),
        "class forward": attr(leaf_class, "forward", GONE, lambda self, x: x + self.k),
        "base's forward code": attr(Leaf.forward, "__code__", Leaf.forward.__code__, (lambda self, x: x * self.k).__code__),
        "class __call__": attr(leaf_class, "__call__", GONE, lambda self, x: x * 8),
        "class _call_impl": attr(leaf_class, "_call_impl", GONE, lambda self, x: x * 9),
        "nn.Module._call_impl": attr(nn.Module, "_call_impl", nn.Module._call_impl, lambda self, x: x * 0.5),
        "__getattr__": attr(leaf_class, "__getattr__", GONE, lambda self, n: 7 if n == "weight" else nn.Module.__getattr__(self, n)),
        "__getattribute__": attr(leaf_class, "__getattribute__", GONE, lambda self, n: 8 if n == "k" else object.__getattribute__(self, n)),
        "class": places(lambda c: setattr(leaf, "__class__", c), leaf_class, type("Patched", (Leaf,), {"forward": lambda self, x: x * 11})),
        "property": attr(leaf_class, "weight", GONE, property(lambda self: 0.25)),
        "unread": raw_attr(leaf, "elsewhere", GONE, 1, matters=False),
    })  # fmt: skip


# dict_keys, equals, tensor, id_is: contents of modules ---------------------------------------------------------------
@family("dict_keys")
def submodules(rng: random.Random) -> Scene:
    net, _, _ = nets()
    fn, args = program(net)
    layers, table = net.layers, net.table
    a, b, c = layers[0], layers[1], Leaf(7)
    first = table["a"]

    def chain(*modules: Any) -> Any:
        return lambda: (layers._modules.clear(), layers._modules.update({str(i): m for i, m in enumerate(modules)}))

    def swap(m: Any) -> None:
        del net.act
        net.add_module("act", m)

    return Scene(fn, args, {
        "layers": calls(chain(a, b), chain(b, a), chain(a), chain(), chain(a, b, c), chain(c, b), chain(a, a), cell=("layers",)),
        "append": calls(
            chain(a, b), lambda: (chain(a, b)(), layers.append(c)), lambda: (chain(a, b)(), layers.insert(0, c)),
            lambda: (chain(a, b)(), layers.__setitem__(0, c)), cell=("layers",),
        ),
        "act": places(swap, net.act, nn.Tanh(), nn.Identity(), nn.ReLU6()),
        "table": places(lambda m: table.__setitem__("a", m), first, Leaf(6), nn.Identity(), cell=("item", id(table))),
        "table vars": places(lambda m: table._modules.__setitem__("a", m), first, Leaf(9), cell=("item", id(table))),
        "first": places(lambda m: net._modules.__setitem__("first", m), net.first, Leaf(8)),
        "an equal one": places(lambda k: net._modules.__setitem__("drop", nn.Dropout(0.0).eval()), 0, 1, matters=False),
        "unread": count(net),
    })  # fmt: skip


@family("tensor")
def parameters(rng: random.Random) -> Scene:
    net, _, _ = nets()
    fn, args = program(net)
    m, other = net.first, net.layers[0]
    tie = other.weight
    w, data, scale = m.weight, m.weight.data, m.scale

    def parametrize(on: bool) -> None:
        p = nn.utils.parametrize
        if on and not p.is_parametrized(other):
            p.register_parametrization(other, "weight", Doubled())
        elif not on and p.is_parametrized(other):
            p.remove_parametrizations(other, "weight", leave_parametrized=False)

    return Scene(fn, args, {
        "replaced": places(lambda v: m._parameters.__setitem__("weight", v), w, nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(2, 4)), cell=("w",)),
        "setattr": calls(lambda: setattr(m, "weight", w), lambda: setattr(m, "weight", nn.Parameter(torch.ones(1))), cell=("w",)),
        "tied": Knob(lambda i: m._parameters.__setitem__("weight", tie if i else w), matters=False, fresh=True, cell=("w",)),
        ".data": places(lambda v: setattr(w, "data", v), data, torch.zeros(1), torch.ones(4, dtype=torch.float64)),
        "buffer": places(lambda v: m._buffers.__setitem__("scale", v), scale, torch.zeros(4), torch.zeros(2, 1), torch.ones(4, dtype=torch.float64)),
        "requires_grad": places(lambda v: [p.requires_grad_(v) for p in net.parameters()], True, False),
        "k": attr(m, "k", 2, 3, 2.5),
        "k in vars": raw_attr(m, "k", 2, 4),
        "in place": places(lambda v: scale.fill_(v), 1.0, 2.0, matters=False),
        "optimiser's step": calls(lambda: w.data.add_(0.25), lambda: w.data.sub_(0.25), matters=False),
        "grad": places(lambda v: setattr(w, "grad", torch.zeros_like(w) if v else None), 0, 1, matters=False),
        "parametrized": Knob(lambda i: parametrize(bool(i)), fresh=True),
        "unread": count(m),
    })  # fmt: skip


class Doubled(nn.Module):
    def forward(self, w: torch.Tensor) -> torch.Tensor:
        return w * 2


@family("equals")
def flags_of_modules(rng: random.Random) -> Scene:
    net, _, _ = nets()
    fn, args = program(net)
    return Scene(fn, args, {
        "train": places(lambda v: net.train(v), False, True),
        "one": raw_attr(net, "training", False, True),
        "k": attr(net.layers[0], "k", 1, 5, 1.0, True),
        "deep": raw_attr(net.table["a"], "k", 4, 6),
        "missing": attr(net.table["a"], "k", 4, GONE),
        "deleted parameter": places(lambda v: net.first._parameters.pop("weight", None) if v is None else net.first._parameters.__setitem__("weight", v), net.first.weight, None),
        "counter": count(net.first),
        "counter of the root": count(net),
        "dict copied": calls(lambda: setattr(net.first, "__dict__", dict(vars(net.first))), lambda: setattr(net.first, "__dict__", dict(vars(net.first))), matters=False),
    })  # fmt: skip
