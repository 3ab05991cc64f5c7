"""Arguments of attention, adjusted so that a fused kernel accepts them.

In: the arguments of `scaled_dot_product_attention` in a trace.  Out: the same arguments, with a mask that an
accelerator's kernels accept.  For a mask that is broadcast along its rows, torch falls back to plain matrix products in f32.
"""

from __future__ import annotations

from typing import Any

import torch

TARGET = torch.nn.functional.scaled_dot_product_attention


def with_contiguous_mask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with a broadcast mask copied into memory."""
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if not isinstance(mask, torch.Tensor) or mask.device.type == "cpu" or mask.dim() == 0 or mask.stride(-1) == 1:
        return args, kwargs
    if len(args) > 3:
        return (*args[:3], mask.contiguous(), *args[4:]), kwargs
    return args, {**kwargs, "attn_mask": mask.contiguous()}
