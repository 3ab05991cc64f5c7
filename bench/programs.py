"""The programs of the benches: functions and modules that are the same for every implementation."""

from __future__ import annotations

import linecache

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def defined(source: str, filename: str) -> object:
    """The function `f` of a generated source."""
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    scope: dict[str, object] = {"torch": torch}
    exec(compile(source, filename, "exec"), scope)
    return scope["f"]


def adder(count: int) -> object:
    """A function of `count` tensors that returns their sum; each is an argument of its own."""
    names = [f"x{i}" for i in range(count)]
    return defined(f"def f({', '.join(names)}):\n    return {' + '.join(names)}\n", f"<adder {count}>")


def linears(count: int, width: int = 8) -> nn.Sequential:
    """`Sequential` of `count` `Linear(width, width)`."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))


class Block(nn.Module):
    """Four `Linear` in a `Sequential`, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = linears(4, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Nested(nn.Module):
    """With 120 blocks: 727 modules, 485 `Linear` among them, and 970 parameters."""

    def __init__(self, blocks: int = 120, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head0 = nn.Linear(width, width)
        self.head1 = nn.Linear(width, width)
        self.head2 = nn.Linear(width, width)
        self.head3 = nn.Linear(width, width)
        self.head4 = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head4(self.head3(self.head2(self.head1(self.head0(x)))))


class Deep(nn.Module):
    """`depth` modules, each the child of the one before, and one `Linear` at the end."""

    def __init__(self, depth: int, width: int = 8) -> None:
        super().__init__()
        self.inner: nn.Module = Deep(depth - 1, width) if depth > 1 else nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def mlp() -> nn.Sequential:
    """Three layers of 8×8."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def plus_one(x: Tensor) -> Tensor:
    return x + 1


def with_break(x: Tensor) -> Tensor:
    """The jump on a tensor's value breaks the graph of every compiler here."""
    y = x + 1
    if y.sum() > 0:
        y = y * 2
    return y - 1


def breaks(count: int) -> object:
    """A function with `count` jumps on the value of a tensor."""
    lines = ["def f(x):", *["    if x.sum() > 0:\n        x = x + 1"] * count, "    return x", ""]
    return defined("\n".join(lines), f"<breaks {count}>")


def gelu_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(F.gelu(x), (x.shape[-1],), weight, bias)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def adam(
    params: list[Tensor], grads: list[Tensor], means: list[Tensor], squares: list[Tensor], corrections: Tensor
) -> None:
    """One step of Adam, in place.  `corrections`: the two bias corrections, 1 - beta ** step."""
    for p, g, m, v in zip(params, grads, means, squares, strict=True):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).addcmul_(g, g, value=0.001)
        denominator = (v / corrections[1]).sqrt().add(1e-8)
        p.sub_(1e-3 * (m / corrections[0]) / denominator)
