"""Tensors with known numbers: integer tensors created from constants, and results of a few operators on them.

In: a recorded call and its result on fakes.  Out: the call's result on real tensors, for code that needs numbers (an
index, a size, lengths of sequences), until the tensor or its memory is written.  The graph computes the tensor anew.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler.capture.effects.fact_log import FactLog, StorageFacts
from pycompiler.operators.kernel_type_checks import tensors_of

MOST = 4096
"""elements"""
MAKE = frozenset((torch.tensor, torch.as_tensor))
FOLD = frozenset(
    (operator.getitem, operator.add, operator.sub, operator.mul, operator.floordiv, torch.sort, torch.argsort, torch.max,
     torch.min, torch.sum, torch.cumsum, torch.flip, torch.ops.aten.alias.default, "to", "long", "int", "cpu", "sort", "argsort",
     "max", "min", "sum", "cumsum", "flip", "clone", "add", "sub", "mul", "view", "unsqueeze", "squeeze", "detach")
)  # fmt: skip
KINDS = (torch.int64, torch.int32, torch.bool)


class KnownTensors:
    """The known tensors of one graph: fake -> real tensor with the same numbers, its storage, and the end of the log.

    `facts`: the log of writes, under any name.
    """

    def __init__(self, facts: FactLog) -> None:
        self.facts = facts
        self.known: dict[int, tuple[torch.Tensor, torch.Tensor, StorageFacts, int]] = {}

    def of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """A real tensor with the numbers of `fake`, which must not be written; None if they are not known."""
        if id(fake) not in self.known:
            return None
        _, real, storage, mark = self.known[id(fake)]
        return None if self.facts.storage(fake) is not storage or self.facts.is_written(fake, mark) else real

    def note(self, call: Any, result: Any) -> None:
        """Record a call that writes nothing."""
        made = tensors_of(result)
        if not made or not all(map(_may_be_known, made)) or not (call.target in MAKE or self._folds(call)):
            return
        try:
            found = tensors_of(call.run(*_with(call.args, self), **_with(call.kwargs, self)))
        except Exception:  # the program's own error, raised by the graph
            return
        for fake, real in zip(made, found, strict=True):
            if real.shape == fake.shape and real.dtype == fake.dtype:
                self.known[id(fake)] = fake, real, self.facts.storage(fake), self.facts.mark()

    def _folds(self, call: Any) -> bool:
        return call.target in FOLD and bool(call.operands) and all(
            self.of(n.meta["example_value"]) is not None for n in call.given
        )  # fmt: skip


def _with(given: Any, folded: KnownTensors) -> Any:
    return torch.fx.node.map_arg(given, lambda n: folded.of(n.meta["example_value"]))


def _may_be_known(fake: torch.Tensor) -> bool:
    plain = type(fake) is FakeTensor and fake.layout is torch.strided and fake.device.type == "cpu"
    return plain and fake.dtype in KINDS and all(type(n) is int for n in fake.shape) and fake.numel() <= MOST
