"""torch.compile(model, backend="pycompiler"): our compiler behind torch's own capture.

In: torch's captured graph and example inputs (real or fake tensors, ints and SymInts).  Out: a callable of the inputs.
Found through the entry-point group `torch_dynamo_backends`; nothing of torch's compiler is imported from here.
Example: `torch.compile(fn, backend="pycompiler")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch._guards import tracing
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler import backends, config
from pycompiler.backends import options as known
from pycompiler.ir.fake import fake_of, new_fake_mode
from pycompiler.ir.texts import forward_of
from pycompiler.logs import stage

_log = stage("dynamo")


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Compile a graph that torch captured.  What cannot be compiled runs eagerly, with a line in the log.

    `mode` and `options` are those of `pycompiler.compile`; unknown ones raise.
    """
    known.check(options or {})
    if mode is not None:
        known.check_mode(mode)
    known.say_unread(mode, options or {})
    symbolic = [i for i, value in enumerate(example_inputs) if is_symbolic(value)]
    if symbolic:
        _log.warning("a graph runs eagerly: its inputs %s have symbolic sizes; use dynamic=False", symbolic)
        return forward_of(gm)
    higher = [str(n.target) for n in gm.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)]
    if higher:
        _log.warning("a graph runs eagerly: higher-order operators %s", ", ".join(higher))
        return forward_of(gm)
    native = backends.lookup("native")
    fakes = own_fakes(example_inputs)
    try:
        # Without torch's tracing context, whose fake mode and shape environment are not ours.
        with tracing(None), config.patch(known.knobs(options or {})):
            return native(gm, fakes)
    except Exception as e:
        if config.raise_internal_errors:
            raise
        _log.warning("a graph runs eagerly: %s: %s", type(e).__name__, e, exc_info=config.verbose)
        return forward_of(gm)


def is_symbolic(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return any(not isinstance(n, int) for n in (*value.shape, *value.stride(), value.storage_offset()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def own_fakes(values: Sequence[Any]) -> list[Any]:
    """Fakes of one mode of ours; torch's belong to the mode of its capture.  Numbers stay as they are."""
    fake_mode = new_fake_mode()
    made: dict[int, Any] = {}  # one fake for one tensor, however often it is given
    for value in values:
        if isinstance(value, torch.Tensor) and id(value) not in made:
            made[id(value)] = _refake(fake_mode, value) if isinstance(value, FakeTensor) else fake_of(fake_mode, value)
    return [made.get(id(value), value) for value in values]


def _refake(fake_mode: Any, value: FakeTensor) -> torch.Tensor:
    """A fake of `fake_mode` with the sizes, strides, dtype, device and gradient flag of another mode's fake."""
    with torch.no_grad():
        last = sum((n - 1) * s for n, s in zip(value.size(), value.stride(), strict=True)) if value.numel() else 0
        with fake_mode:
            storage = torch.empty(value.storage_offset() + last + 1, dtype=value.dtype, device=value.device)
            made = storage.as_strided(value.size(), value.stride(), value.storage_offset())
            made = made if value.storage_offset() else torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=value.device
            )  # fmt: skip
    if not value.requires_grad:
        return made
    made = made.detach().requires_grad_()
    if value.is_leaf:
        return made
    with fake_mode, torch.enable_grad():
        return made.clone(memory_format=torch.preserve_format).as_strided(value.size(), value.stride())
