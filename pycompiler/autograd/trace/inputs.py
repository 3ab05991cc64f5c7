"""Inputs of a trace: examples become functional wrappers, each over a fake tensor and a placeholder of its own.

In: example inputs.  Out: `TracedInput`s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.autograd.recorder import Recorder, unrecorded_fakes
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.symbolic.number_nodes import SYMBOLIC
from pycompiler.symbolic.symbols import symbols_of


def refuse_exotic(example: Any) -> None:
    if isinstance(example, SYMBOLIC) and symbols_of(example) is None:
        raise AutogradUnsupported("another compiler's symbolic number", str(example), "compile with static sizes")
    if not isinstance(example, torch.Tensor):
        return
    if not isinstance(example, FakeTensor):
        raise TypeError(f"expected a FakeTensor as example input, got {type(example).__name__}")
    if example.layout is not torch.strided or example.is_nested or example.is_quantized:
        raise AutogradUnsupported("an input that is not strided", f"layout {example.layout}", "the graph runs eagerly")
    if example._has_symbolic_sizes_strides and not _ours(example):
        raise AutogradUnsupported(
            "an input with another compiler's symbolic sizes", str(tuple(example.shape)), "compile with static sizes"
        )


def _ours(t: torch.Tensor) -> bool:
    return all(symbols_of(n) is not None for n in (*t.shape, *t.stride()) if isinstance(n, torch.SymInt))


def storage_of(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


class _EarlierWork(torch.autograd.Function):
    """Identity: a result of earlier work, with its own strides."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return torch._to_functional_tensor(twin)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


ARRIVED = f"{_EarlierWork.__name__}Backward"
"""Name of the autograd node that stands for the earlier work which computed an input."""


class TracedInput:
    """A traced input: gradients are taken with respect to `leaf`; the graph receives `seen`, and may write it."""

    def __init__(self, example: torch.Tensor, fake: FakeTensor, recorder: Recorder, name: str) -> None:
        self.example = example
        self.fake = fake
        self.node = recorder.placeholder(name, self.fake)
        self.node.meta["requires_grad"] = example.requires_grad
        self.leaf = torch._to_functional_tensor(self.fake)
        self.requires_grad = example.requires_grad and torch.is_grad_enabled()
        if example.requires_grad:
            self.leaf.requires_grad_()
        self.seen = self.leaf
        if self.requires_grad and not _is_leaf(example, recorder):
            # A result of earlier work may be written in place, a leaf may not.
            with unrecorded_fakes(recorder.fake_mode):
                twin = _fresh_fake(example)
            recorder.alias(twin, self.node)
            self.seen = _EarlierWork.apply(self.leaf, twin)  # type: ignore[no-untyped-call]
        self.layout = layout_of(self.seen)
        self.offset = self.seen.storage_offset()
        self.grad_fn = self.seen.grad_fn
        self.version = self.seen._version
        self.seen_requires_grad = self.seen.requires_grad

    def value(self) -> torch.Tensor:
        return inner(self.seen)


def _is_leaf(example: torch.Tensor, recorder: Recorder) -> bool:
    """Read outside of the trace: for a view whose base was written, this query rebuilds the history, with operators."""
    if not example._is_view():
        return example.is_leaf
    with unrecorded_fakes(recorder.fake_mode):
        return example.is_leaf


def layout_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Shape, strides and dtype, without the offset: a new value has memory of its own in the trace, with offset 0.

    Strides of dimensions of one element are ignored.
    """
    strides = tuple(0 if type(n) is int and n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True))
    return (t.shape, strides, t.dtype)


def fresh_fakes(examples: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """For each tensor an alias of its own, created together, so that the modes are left and entered once."""
    with unrecorded_fakes(mode):
        return [_fresh_fake(e) if isinstance(e, torch.Tensor) else None for e in examples]


def _fresh_fake(example: torch.Tensor) -> torch.Tensor:
    if example.is_inference():  # its detached alias would be an inference tensor too
        return torch.empty_strided(example.shape, example.stride(), dtype=example.dtype, device=example.device)
    return example.detach()


def inner(t: torch.Tensor) -> torch.Tensor:
    if not torch._is_functional_tensor(t):
        return t
    torch._functionalize_sync(t)
    return torch._from_functional_tensor(t)


def mutation_kind(item: TracedInput) -> str:
    if item.seen._version == item.version:
        return "hidden"
    return (
        "no_grad"
        if item.seen.grad_fn is item.grad_fn and item.seen_requires_grad == item.seen.requires_grad
        else "grad"
    )
