"""The losses of `ctc_loss` as operators whose shapes do not depend on data.

In: logarithms of probabilities (T, N, C), targets and lengths, on the host.  Out: N losses; raises as eager does.
ATen's operator also returns data for its backward, whose size depends on the longest target.  Here the backward
recomputes it.
"""

from __future__ import annotations

from typing import Any

import torch

from pycompiler.operators.operator_facts import row
from pycompiler.operators.symbolic_shape_rules import packed

aten = torch.ops.aten

_LIBRARY = torch.library.Library("pycompiler", "FRAGMENT")  # type: ignore[no-untyped-call]
_TAKES = "Tensor probabilities, Tensor targets, Tensor frames, Tensor lengths, int blank, bool zero"
_LIBRARY.define(f"ctc_losses({_TAKES}) -> Tensor")  # type: ignore[no-untyped-call]
_LIBRARY.define(f"ctc_losses_backward(Tensor tangent, {_TAKES}) -> Tensor")  # type: ignore[no-untyped-call]


def _losses(probabilities: torch.Tensor, *args: Any) -> torch.Tensor:
    return aten._ctc_loss.Tensor(probabilities, *args)[0]  # type: ignore[no-any-return]


def _backward(tangent: torch.Tensor, probabilities: torch.Tensor, *args: Any) -> torch.Tensor:
    *given, blank, zero = args
    kept = aten._ctc_loss.Tensor(probabilities, *args)
    return aten._ctc_loss_backward.Tensor(tangent, probabilities, *given, *kept, blank, zero)  # type: ignore[no-any-return]


def _losses_like(probabilities: torch.Tensor, *args: Any) -> torch.Tensor:
    return probabilities.new_empty(probabilities.shape[1:2])


def _gradient_like(tangent: torch.Tensor, probabilities: torch.Tensor, *args: Any) -> torch.Tensor:
    return torch.empty_like(probabilities, memory_format=torch.contiguous_format)


for _name, _kernel, _fake in (
    ("ctc_losses", _losses, _losses_like), ("ctc_losses_backward", _backward, _gradient_like),
):  # fmt: skip
    _LIBRARY.impl(_name, _kernel, "CPU")  # type: ignore[no-untyped-call]
    _LIBRARY.impl(_name, _fake, "Meta")  # type: ignore[no-untyped-call]


ctc_losses = torch.ops.pycompiler.ctc_losses.default
ctc_losses_backward = torch.ops.pycompiler.ctc_losses_backward.default


row("pycompiler::ctc_losses", raises="host", layouts=lambda x, *args: [packed(x.shape[1:2])])
row("pycompiler::ctc_losses_backward", layouts=lambda tangent, x, *args: [packed(x.shape)])


class CtcLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *args: Any) -> torch.Tensor:
        made: torch.Tensor = ctc_losses(*args)
        ctx.save_for_backward(*args[:4], made)  # eager's node saves these tensors too
        ctx.numbers = args[4:]
        return made

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:
        *given, _ = ctx.saved_tensors
        probabilities = given[0]
        made = ctc_losses_backward(tangent, *given, *ctx.numbers)
        if torch.is_grad_enabled() and (tangent.requires_grad or probabilities.requires_grad):
            made = _NotDifferentiable.apply(made, tangent, probabilities)  # type: ignore[no-untyped-call]
        return made, None, None, None, None, None


class _NotDifferentiable(torch.autograd.Function):
    """A gradient that cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, *behind: torch.Tensor) -> torch.Tensor:
        return made.clone()

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("derivative for aten::_ctc_loss_backward is not implemented")


def _is_wrapper(t: torch.Tensor) -> bool:
    return torch._is_functional_tensor(t) or torch._C._functorch.is_functorch_wrapped_tensor(t)


def losses(
    probabilities: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    lengths: torch.Tensor,
    blank: int,
    zero: bool,
) -> torch.Tensor:
    """The losses without a reduction; `zero`: gradients of infinite losses are zeros."""
    if type(probabilities) in (torch.Tensor, torch.nn.Parameter) and not _is_wrapper(probabilities):
        return aten._ctc_loss.Tensor(probabilities, targets, frames, lengths, blank, zero)[0]  # type: ignore[no-any-return]
    return CtcLosses.apply(probabilities, targets, frames, lengths, blank, zero)  # type: ignore[no-any-return, no-untyped-call]
