"""What goes into a trace: examples become functional wrappers, each over a fake and a placeholder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.autograd.recorder import Recorder, plain
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir.numbers import SYMBOLIC
from pycompiler.ir.symbols import symbols_of


def refuse_exotic(example: Any) -> None:
    if isinstance(example, SYMBOLIC) and symbols_of(example) is None:
        raise AutogradUnsupported("another compiler's symbolic number", str(example), "compile with static sizes")
    if not isinstance(example, torch.Tensor):
        return
    if not isinstance(example, FakeTensor):
        raise TypeError(f"expected a FakeTensor as example input, got {type(example).__name__}")
    if example.layout is not torch.strided or example.is_nested or example.is_quantized:
        raise AutogradUnsupported("input that is not strided", f"layout {example.layout}", "the graph runs eagerly")
    if example._has_symbolic_sizes_strides and not _ours(example):
        raise AutogradUnsupported("input with symbolic sizes", str(tuple(example.shape)), "compile with static sizes")


def _ours(t: torch.Tensor) -> bool:
    return all(symbols_of(n) is not None for n in (*t.shape, *t.stride()) if isinstance(n, torch.SymInt))


def storage_of(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


class _Arrived(torch.autograd.Function):
    """Identity: a result of other work, with the strides that it has."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return torch._to_functional_tensor(twin)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, None


ARRIVED = "_ArrivedBackward"
"""What the node is called that stands for the work which an input is a result of."""


class Input:
    """A traced input: `leaf` is what gradients are taken of, `seen` the object that the graph gets and may mutate."""

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
            # A result of other work may be mutated in place, a leaf may not.
            with plain(recorder.fake_mode):
                twin = _fresh_fake(example)
            recorder.alias(twin, self.node)
            self.seen = _Arrived.apply(self.leaf, twin)  # type: ignore[no-untyped-call]
        self.layout = layout_of(self.seen)
        self.offset = self.seen.storage_offset()
        self.grad_fn = self.seen.grad_fn
        self.version = self.seen._version
        self.seen_requires_grad = self.seen.requires_grad

    def value(self) -> torch.Tensor:
        return inner(self.seen)


def _is_leaf(example: torch.Tensor, recorder: Recorder) -> bool:
    """Asked outside of the trace: the history of a view whose base was written is made anew then, by operators."""
    if not example._is_view():
        return example.is_leaf
    with plain(recorder.fake_mode):
        return example.is_leaf


def layout_of(t: torch.Tensor) -> tuple[Any, ...]:
    """Without the offset: a new value has memory of its own in the trace, where it starts at 0.  One element has any stride."""
    strides = tuple(0 if type(n) is int and n == 1 else s for n, s in zip(t.shape, t.stride(), strict=True))
    return (t.shape, strides, t.dtype)


def fresh_fakes(examples: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """Of each tensor an alias of its own, made together: the modes are left and entered once."""
    with plain(mode):
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


def mutation_kind(item: Input) -> str:
    if item.seen._version == item.version:
        return "hidden"
    return (
        "no_grad"
        if item.seen.grad_fn is item.grad_fn and item.seen_requires_grad == item.seen.requires_grad
        else "grad"
    )
