"""Detector of programs whose result depends on the order in which eager's kernels visit elements; such programs are
skipped."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .program import Program


class Overlaps(TorchDispatchMode):
    """Detects writes whose result depends on the order of elements: to memory that is also read, or written twice."""

    POINTWISE = frozenset(
        ["add_", "sub_", "mul_", "copy_", "clamp_", "masked_fill_", "addcmul_", "addcdiv_", "lerp_", "div_"]
    )

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        named = [(a, args[k] if k < len(args) else kwargs.get(a.name)) for k, a in enumerate(func._schema.arguments)]
        written = [a.alias_info is not None and a.alias_info.is_write for a, _ in named]
        targets = [t for (_, t), w in zip(named, written, strict=True) if w and isinstance(t, torch.Tensor)]
        others = [t for (_, t), w in zip(named, written, strict=True) if not w and isinstance(t, torch.Tensor)]
        for target in targets:
            places = touched(target)
            if len(places) != target.numel() and func.overloadpacket.__name__ != "resize_":
                self.found = True
            for t in others:
                if t.untyped_storage().data_ptr() != target.untyped_storage().data_ptr() or not t.numel() or not places:
                    continue
                same = (t.shape, t.stride(), t.storage_offset()) == (
                    target.shape,
                    target.stride(),
                    target.storage_offset(),
                )
                if not (same and func.overloadpacket.__name__ in self.POINTWISE) and places & touched(t):
                    self.found = True
        return func(*args, **kwargs)


def touched(t: torch.Tensor) -> set[int]:
    """The elements of its storage that a tensor covers."""
    if not t.numel():
        return set()
    at = torch.zeros((), dtype=torch.int64)
    for n, s in zip(t.shape, t.stride(), strict=True):
        at = at[..., None] + torch.arange(n) * s
    return set((at.flatten() + t.storage_offset()).tolist())


def ordered(program: Program, device: str) -> bool:
    """Whether eager's result of a program depends on the order of elements (False if the program raises)."""
    make, fn = program.load(device)
    watch = Overlaps()
    try:
        with watch:
            fn(*make()[1])
    except Exception:
        return False
    return watch.found
