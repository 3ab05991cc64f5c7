"""Arguments of attention, so that a fused kernel takes them.

In: the arguments of `scaled_dot_product_attention` in a trace.  Out: the same call's, with a mask that an accelerator's
kernels accept: torch falls back to plain matrix products, in f32, for one that is broadcast along its rows.
"""

from __future__ import annotations

from typing import Any

import torch

TARGET = torch.nn.functional.scaled_dot_product_attention


def prepared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the mask in memory where it was broadcast."""
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if not isinstance(mask, torch.Tensor) or mask.device.type == "cpu" or mask.dim() == 0 or mask.stride(-1) == 1:
        return args, kwargs
    if len(args) > 3:
        return (*args[:3], mask.contiguous(), *args[4:]), kwargs
    return args, {**kwargs, "attn_mask": mask.contiguous()}
